"""The configuration of a run: everything it depends on, frozen. settings.json says what each means.

A profile (TOML), the environment and options fill it (launch/config/resolve.py); it is written to
the run folder as config.toml (rundir/config_file.py), and ranks read it from there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Packing = Literal["auto", True, False, "by_length"]
Sources = dict[str, str]  # "section.key" → where its value came from


# Of each "section.key": what it means, and its limits if it has any.
_SETTINGS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("settings.json").read_text(encoding="utf-8")
)


def _field(key: str, default: Any) -> Any:
    """Return the field of `key`, with its meaning and limits: `at_least` is the least value."""
    return field(default=default, metadata={"at_least": None, "below": None, **_SETTINGS[key]})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model, and how it is held in memory."""

    path: str = _field("model.path", "")
    revision: str = _field("model.revision", "")
    dtype: Literal["float32", "bfloat16"] = _field("model.dtype", "bfloat16")
    attention: Literal["auto", "varlen", "sdpa", "cudnn", "eager", "flash_attention_2"] = _field(
        "model.attention", "auto"
    )
    towers: Literal["skip", "keep"] = _field("model.towers", "skip")
    gradient_checkpointing: Literal["auto", True, False] | int = _field(
        "model.gradient_checkpointing", False
    )
    compile: bool = _field("model.compile", False)
    trust_remote_code: bool = _field("model.trust_remote_code", False)


DEFAULT_HELD_OUT = 0.02  # the share that data.eval_fraction = -1 stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The training data: texts, prompts with responses, or conversations (docs/data.md)."""

    path: str = _field("data.path", "")
    eval_path: str = _field("data.eval_path", "")
    eval_fraction: float = _field("data.eval_fraction", 0.0)
    max_eval_samples: int = _field("data.max_eval_samples", 0)
    columns: str = _field("data.columns", "")
    only_where: str = _field("data.only_where", "")
    loss_on: Literal["answers", "last_answer"] = _field("data.loss_on", "answers")
    chat_template: str = _field("data.chat_template", "")
    template_options: str = _field("data.template_options", "")
    max_samples: int = _field("data.max_samples", 0)
    max_seq_length: int = _field("data.max_seq_length", 2048)
    on_long_row: Literal["drop", "truncate", "split"] = _field("data.on_long_row", "drop")
    on_bad_row: Literal["stop", "skip"] = _field("data.on_bad_row", "stop")
    streaming: bool = _field("data.streaming", False)
    shuffle_mib: int = _field("data.shuffle_mib", 16)
    packing: Literal["auto", True, False, "by_length"] = _field("data.packing", "auto")

    @property
    def may_share_rows(self) -> bool:
        """Whether several samples may stand in one row, unless a trial of the model denies it."""
        return self.packing in (True, "auto")

    @property
    def held_out_share(self) -> float:
        """The share of path to hold out: none of streamed data by default, or beside eval_path."""
        if self.eval_path:
            return 0.0
        if self.eval_fraction >= 0:
            return self.eval_fraction
        return 0.0 if self.streaming else DEFAULT_HELD_OUT


# The settings of adapters that change the memory they take; their scaling does not.
ADAPTER_SHAPE = (
    "lora_rank",
    "lora_targets",
    "lora_dropout",
    "lora_dora",
    "lora_new_tokens",
    "adapter",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The optimisation; a step takes `global_batch_size` samples, however many ranks share them."""

    method: Literal["full", "lora", "qlora"] = _field("train.method", "lora")
    max_steps: int = _field("train.max_steps", 0)
    epochs: float = _field("train.epochs", 1.0)
    global_batch_size: int = _field("train.global_batch_size", 64)
    micro_batch_size: int = _field("train.micro_batch_size", 1)
    learning_rate: float = _field("train.learning_rate", 1e-4)
    schedule: Literal["cosine", "linear", "constant"] = _field("train.schedule", "cosine")
    min_lr_ratio: float = _field("train.min_lr_ratio", 0.1)
    warmup_steps: int = _field("train.warmup_steps", 10)
    adam_beta1: float = _field("train.adam_beta1", 0.9)
    adam_beta2: float = _field("train.adam_beta2", 0.95)
    weight_decay: float = _field("train.weight_decay", 0.0)
    max_grad_norm: float = _field("train.max_grad_norm", 1.0)
    optimizer: Literal["adamw", "adamw-8bit"] = _field("train.optimizer", "adamw")
    bf16_updates: Literal["auto", "master", "stochastic", "plain"] = _field(
        "train.bf16_updates", "auto"
    )
    shard_optimizer: bool = _field("train.shard_optimizer", False)
    lora_rank: int = _field("train.lora_rank", 16)
    lora_alpha: int = _field("train.lora_alpha", 32)
    lora_targets: str = _field("train.lora_targets", "")
    lora_dropout: float = _field("train.lora_dropout", 0.0)
    lora_dora: bool = _field("train.lora_dora", False)
    lora_rslora: bool = _field("train.lora_rslora", False)
    lora_new_tokens: bool = _field("train.lora_new_tokens", True)
    adapter: str = _field("train.adapter", "")
    merge_adapters: bool = _field("train.merge_adapters", True)
    seed: int = _field("train.seed", 0)
    log_every_steps: int = _field("train.log_every_steps", 1)
    eval_every_steps: int = _field("train.eval_every_steps", 0)
    evolution_prompts: int = _field("train.evolution_prompts", 32)
    evolution_share: float = _field("train.evolution_share", 0.02)
    eval_generate: bool = _field("train.eval_generate", False)
    checkpoint_every_steps: int = _field("train.checkpoint_every_steps", 0)
    keep_checkpoints: int = _field("train.keep_checkpoints", 2)
    export: Literal["best", "last"] = _field("train.export", "best")
    evaluate: bool = _field("train.evaluate", True)
    early_stop_evaluations: int = _field("train.early_stop_evaluations", 0)
    on_bad_loss: Literal["warn", "stop", "skip", "rollback"] = _field("train.on_bad_loss", "warn")
    memory_history: bool = _field("train.memory_history", True)
    report_to: str = _field("train.report_to", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """The way in which ranks are started."""

    num_ranks: int = _field("launch.num_ranks", 0)
    device: Literal["auto", "cuda", "cpu"] = _field("launch.device", "auto")
    needs_gpu: bool = _field("launch.needs_gpu", True)
    start: Literal["warm", "imports", "cold"] = _field("launch.start", "warm")
    load: Literal["auto", "mmap", "broadcast", "random"] = _field("launch.load", "auto")
    admit: Literal["auto", "serial", "open"] = _field("launch.admit", "auto")
    gate_timeout_s: float = _field("launch.gate_timeout_s", 3600.0)
    zygote_timeout_s: float = _field("launch.zygote_timeout_s", 900.0)
    max_restarts: int = _field("launch.max_restarts", 0)
    restart_backoff_s: float = _field("launch.restart_backoff_s", 1.0)
    collective_timeout_s: float = _field("launch.collective_timeout_s", 1800.0)
    hang_timeout_s: float = _field("launch.hang_timeout_s", -1.0)
    on_hang: Literal["auto", "end", "warn"] = _field("launch.on_hang", "auto")
    stop_timeout_s: float = _field("launch.stop_timeout_s", 300.0)
    threads_per_rank: int = _field("launch.threads_per_rank", 0)
    numa: Literal["auto", "off"] = _field("launch.numa", "auto")
    nccl: Literal["default", "low-memory"] = _field("launch.nccl", "default")
    on_event: str = _field("launch.on_event", "")
    monitor: bool = _field("launch.monitor", False)
    keep_env: str = _field("launch.keep_env", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """The resources that a rank may use."""

    rlimit_as_gib: float = _field("limits.rlimit_as_gib", -1.0)
    guard_gib: float = _field("limits.guard_gib", -1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptConfig:
    """A training script of the user's own, run in place of Airlock's trainer."""

    path: str  # absolute
    module: str = ""  # its name, if it is run as a module, like `python -m`: found at `path`
    args: tuple[str, ...] = ()  # as typed after the path or the name
    preload: tuple[str, ...] = ()  # modules to import besides those it names; "-NAME" drops one


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """A named set of held-out data, `[evaluation.NAME]`, with a curve of its own."""

    path: str = _field("evaluation.path", "")
    columns: str = _field("evaluation.columns", "")
    max_samples: int = _field("evaluation.max_samples", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringConfig:
    """An evaluation without training, of the sets in `evaluation`: `airlock evaluate`."""

    model: str  # as it was typed
    checkpoint: str = ""  # a folder whose weights the model gets
    generate: bool = True  # answers, and count exact matches
    per_example: bool = False  # keep the loss of each sample


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run, resolved; `architecture` is the model's Hugging Face config (field: value).

    With `scoring` nothing is trained. With a `script` only the sections of `SCRIPT_SECTIONS` have a
    meaning.
    """

    profile: str
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    architecture: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, EvaluationConfig] = field(default_factory=dict)  # by name
    scoring: ScoringConfig | None = None
    script: ScriptConfig | None = None


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "data": DataConfig,
    "train": TrainConfig,
    "launch": LaunchConfig,
    "limits": LimitsConfig,
}
SCRIPT_SECTIONS = ("launch", "limits")
