"""The configuration of a run: everything it depends on, frozen; fields state meaning and unit.

A profile (TOML), the environment and options fill it (launch/config/resolve.py); it is written to
the run folder as config.toml (rundir/config_file.py), and ranks read it from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Packing = Literal["auto", True, False, "by_length"]
Sources = dict[str, str]  # "section.key" → where its value came from


def _field(
    default: Any, help_: str, *, at_least: float | None = None, below: float | None = None
) -> Any:
    """Return a field with its meaning; `at_least` is the smallest number allowed."""
    limits = {"at_least": at_least, "below": below}
    return field(default=default, metadata={"help": help_, **limits})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model, and how it is held in memory."""

    path: str = _field("", "a Hugging Face id, or a local folder; empty: made from [architecture]")
    revision: str = _field(
        "", "version of a model of the Hub: a branch, a tag or a commit; empty: main"
    )
    dtype: Literal["float32", "bfloat16"] = _field("bfloat16", "type of the weights in memory")
    attention: Literal["auto", "varlen", "sdpa", "cudnn", "eager", "flash_attention_2"] = _field(
        "auto",
        "implementation of attention; auto: on a GPU varlen, torch's flash kernel for packed rows, "
        "or flash_attention_2, a package, for models beyond it; else sdpa, torch's own, or eager "
        "for a model that has no other; cudnn: sdpa by NVIDIA's cuDNN",
    )
    towers: Literal["skip", "keep"] = _field(
        "skip",
        "vision and audio towers of a multimodal model, which is trained on text; skip: they are "
        "not loaded, and exported from its files; keep: they are loaded, frozen",
    )
    gradient_checkpointing: bool = _field(
        False, "recompute activations in backward: slower, far smaller"
    )
    compile: bool = _field(
        False, "torch.compile for each block: faster steps, after minutes for the first"
    )
    trust_remote_code: bool = _field(False, "run Python code that comes with the model")


DEFAULT_HELD_OUT = 0.02  # the share that data.eval_fraction = -1 stands for


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The training data: texts, prompts with responses, or conversations (docs/data.md)."""

    path: str = _field(
        "",
        "training data: a file or a folder of JSONL, JSON, CSV, TSV, Parquet, Arrow or text, or "
        "hf:OWNER/NAME",
    )
    eval_path: str = _field("", "held-out data, as path; empty: eval_fraction of path, or none")
    eval_fraction: float = _field(
        0.0,
        "share of path that is held out, the same rows each time; below 1; -1: 0.02, and none of "
        "data with fewer than 8 such rows, or streamed",
        at_least=-1,
    )
    max_eval_samples: int = _field(
        0, "evaluate so many of the held-out samples, spread evenly; 0: all", at_least=0
    )
    columns: str = _field(
        "",
        "columns trained on: TEXT, MESSAGES, PROMPT,RESPONSE or PROMPT,MORE,RESPONSE; empty: found "
        "by their names",
    )
    only_where: str = _field(
        "", "column; rows where it is false, 0 or empty are left out and counted"
    )
    loss_on: Literal["answers", "last_answer"] = _field(
        "answers", "messages of the assistant that are trained: all, or the last one alone"
    )
    chat_template: str = _field(
        "", "file of a chat template (Jinja) to use, and to export, instead of the model's own"
    )
    template_options: str = _field(
        "", "further values for the chat template: NAME=VALUE,… such as enable_thinking=false"
    )
    max_samples: int = _field(0, "use only the first so many training samples; 0: all", at_least=0)
    max_seq_length: int = _field(
        2048, "tokens; what becomes of longer ones: on_long_row", at_least=8
    )
    on_long_row: Literal["drop", "truncate", "split"] = _field(
        "drop",
        "drop: too long samples are left out; truncate: what is beyond is cut off; split: texts "
        "are cut in pieces; all are counted",
    )
    on_bad_row: Literal["stop", "skip"] = _field(
        "stop", "stop: a wrong row ends the run; skip: it is left out, counted and listed"
    )
    streaming: bool = _field(
        False,
        "training data are read and tokenised by the ranks while they train, not once before; for "
        "what is too large for that",
    )
    shuffle_mib: int = _field(
        16,
        "streaming: rows within so much of the data, MiB, are shuffled with each other",
        at_least=1,
    )
    packing: Literal["auto", True, False, "by_length"] = _field(
        "auto",
        "true: rows of up to max_seq_length tokens, of several samples that do not see each other; "
        "by_length: a row for each, and samples of like length computed at once, up to as many "
        "tokens; false: a row for each, micro_batch_size at once; auto: true, or by_length for a "
        "model in which samples of one row see each other",
    )

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

    method: Literal["full", "lora", "qlora"] = _field(
        "lora",
        "weights that are trained. full: all; lora: adapters on every matrix of a block; "
        "qlora: the same, and the layers below them are held in four bits (bitsandbytes)",
    )
    max_steps: int = _field(0, "optimizer steps; 0: as many as `epochs` come to", at_least=0)
    epochs: float = _field(
        1.0,
        "passes over the data, used when max_steps is 0; the last step has the rows that are left",
        at_least=0,
    )
    global_batch_size: int = _field(64, "samples a step, over all ranks", at_least=1)
    micro_batch_size: int = _field(
        1, "rows a rank computes at once, at most; without packing a row is a sample", at_least=1
    )
    learning_rate: float = _field(1e-4, "peak learning rate", at_least=0)
    schedule: Literal["cosine", "linear", "constant"] = _field("cosine", "after the warm-up")
    min_lr_ratio: float = _field(
        0.1,
        "share of the peak learning rate that cosine and linear end with; below 1",
        at_least=0,
        below=1,
    )
    warmup_steps: int = _field(10, "steps of linear warm-up", at_least=0)
    adam_beta1: float = _field(
        0.9, "AdamW's β₁, how slowly its average of gradients changes; below 1", at_least=0, below=1
    )
    adam_beta2: float = _field(
        0.95,
        "AdamW's β₂, the same of squared gradients; 0.95 as GPT-3 was trained (Brown et al. 2020), "
        "while torch and transformers have 0.999; below 1",
        at_least=0,
        below=1,
    )
    weight_decay: float = _field(
        0.0,
        "AdamW's decoupled weight decay: of matrices and embeddings, not of norms, biases, and "
        "Mamba's A_log and D",
        at_least=0,
    )
    max_grad_norm: float = _field(1.0, "gradients are clipped to this norm; 0: not", at_least=0)
    optimizer: Literal["adamw", "adamw-8bit"] = _field(
        "adamw", "adamw-8bit: its states take a byte each (bitsandbytes)"
    )
    bf16_updates: Literal["auto", "master", "stochastic", "plain"] = _field(
        "auto",
        "update of weights in bfloat16, which lose changes below 1/512 of themselves, for "
        "method = full. master: in float32 copies, 4 bytes a weight, shared out where states are; "
        "stochastic: rounded up or down at random, right on average; plain: rounded to the "
        "nearest; auto: master where the plan says that it fits, else stochastic",
    )
    shard_optimizer: bool = _field(
        False, "share AdamW's states out among the ranks (ZeRO stage 1): for method = full"
    )
    lora_rank: int = _field(16, "rank of the adapters", at_least=1)
    lora_alpha: int = _field(32, "adapters are scaled by alpha / rank", at_least=0)
    lora_targets: str = _field(
        "",
        "names of the layers that get adapters, separated by commas, such as q_proj,v_proj; empty: "
        "every matrix of a block, of experts too, but routers",
    )
    lora_dropout: float = _field(
        0.0, "share of an adapter's inputs dropped; above 0, experts get no adapters", at_least=0
    )
    lora_dora: bool = _field(
        False, "weights in magnitude and direction (DoRA): slower; experts get no adapters"
    )
    lora_rslora: bool = _field(False, "adapters are scaled by alpha / √rank (rsLoRA)")
    lora_new_tokens: bool = _field(
        True, "train the embeddings of tokens added to the tokenizer beside the adapters"
    )
    adapter: str = _field(
        "", "folder of adapters to go on from, as peft has them; their own rank and targets hold"
    )
    merge_adapters: bool = _field(
        True, "write the whole model as well, adapters merged into it; false: adapters alone"
    )
    seed: int = _field(0, "seed of the data order, of new weights and of dropout", at_least=0)
    log_every_steps: int = _field(1, "steps between two metrics", at_least=1)
    eval_every_steps: int = _field(0, "steps between evaluations; 0: before and after", at_least=0)
    evolution_prompts: int = _field(
        32, "held-out prompts that are answered at steps 0, 10, 25, 50, 100 …; 0: none", at_least=0
    )
    evolution_share: float = _field(
        0.02, "share of the run's time that these answers may take: others are left out", at_least=0
    )
    eval_generate: bool = _field(False, "evaluations also generate answers and count exact matches")
    checkpoint_every_steps: int = _field(0, "steps between checkpoints; 0: at the end", at_least=0)
    keep_checkpoints: int = _field(
        2, "number of checkpoints that are kept, the last ones, beside the best", at_least=1
    )
    export: Literal["best", "last"] = _field(
        "best",
        "checkpoint that becomes the model. best: of those kept after an evaluation, the one with "
        "the lowest held-out loss, and without held-out data the last; last: the last",
    )
    evaluate: bool = _field(
        True, "false: no evaluation at all, before, during and after, whatever is held out"
    )
    early_stop_evaluations: int = _field(
        0,
        "stop when the held-out loss has not improved for so many evaluations of "
        "eval_every_steps, and export the best checkpoint; 0: never",
        at_least=0,
    )
    on_bad_loss: Literal["warn", "stop", "skip", "rollback"] = _field(
        "warn",
        "answer to a step whose loss is no number, or has jumped (docs/decisions/0027). "
        "warn: a jump is said, with the step's samples, and a loss that is no number ends the run; "
        "stop: the run saves the weights before that step, and ends; skip: the step changes no "
        "weight; rollback: back to the last checkpoint, and on without that step, at most 3 "
        "times. stop and skip add up each loss before its update: a wait each step",
    )
    memory_history: bool = _field(
        True,
        "on a GPU, note the line of each allocation, some 2 µs each: if memory runs out, the "
        "incident has the ten largest with their lines",
    )
    report_to: str = _field(
        "",
        "trackers besides TensorBoard files: wandb, trackio, or both with a comma",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """The way in which ranks are started."""

    num_ranks: int = _field(0, "ranks on this node; 0: one for each visible GPU, 2 on CPU")
    device: Literal["auto", "cuda", "cpu"] = _field(
        "auto", "auto: cuda where there is a GPU; `python -m train` on a Mac: its GPU (mps)"
    )
    needs_gpu: bool = _field(True, "false: the profile can also be trained on CPU")
    start: Literal["warm", "imports", "cold"] = _field(
        "warm",
        "warm: libraries and model are loaded once, and each rank is a fork of the process that "
        "has them; imports: only the libraries are, each rank gets the model by itself; cold: "
        "each rank does both for itself, inside the gate",
    )
    load: Literal["auto", "mmap", "broadcast", "random"] = _field(
        "auto",
        "mmap: whoever loads the model maps its files; broadcast: rank 0 does, and the others get "
        "it from there; random: no weights are read, they are made from train.seed; auto: mmap, or "
        "broadcast where that would cost each rank time or memory",
    )
    admit: Literal["auto", "serial", "open"] = _field(
        "auto",
        "who is inside the gate at once. serial: one rank; auto: the first rank alone, to be "
        "measured, then as many as the memory takes, warm ones all; open: none waits",
    )
    gate_timeout_s: float = _field(3600.0, "longest wait for the gate, seconds", at_least=1)
    zygote_timeout_s: float = _field(
        900.0,
        "longest time, seconds, for one library or the model to load in a warm start, which then "
        "becomes a cold one",
        at_least=1,
    )
    max_restarts: int = _field(
        0, "number of times that all ranks are started again after one has failed", at_least=0
    )
    restart_backoff_s: float = _field(
        1.0,
        "wait before the second restart, seconds, doubled for each further one up to 60; the "
        "first comes at once",
        at_least=0,
    )
    collective_timeout_s: float = _field(
        1800.0,
        "longest wait, seconds, of a rank for the others in a collective; waiting for those that "
        "are still at the gate has no limit",
        at_least=1,
    )
    hang_timeout_s: float = _field(
        -1.0,
        "seconds without progress of any rank after which the run counts as hung, six times that "
        "for the start, the first step, evaluations, checkpoints and the export; -1: 20 times the "
        "usual step, at least 300; 0: never. Of a script: seconds that a rank waits for others, "
        "of which none moves (six times that if none waits), -1: 300 and 1800",
        at_least=-1,
    )
    on_hang: Literal["auto", "end", "warn"] = _field(
        "auto",
        "answer to a run that hangs. end: it fails, with exit code 12, or restarts; warn: it "
        "is said, and no more; auto: end, and warn for a script",
    )
    stop_timeout_s: float = _field(
        300.0, "longest wait, seconds, for ranks to save when a stop is asked for", at_least=0
    )
    threads_per_rank: int = _field(0, "CPU threads of a rank; 0: cores ÷ ranks", at_least=0)
    numa: Literal["auto", "off"] = _field(
        "auto",
        "auto: on a machine with several NUMA nodes, a rank on a GPU runs on cores of the node "
        "that its GPU is connected to, and prefers its memory; off: the kernel chooses",
    )
    nccl: Literal["default", "low-memory"] = _field(
        "default", "low-memory: one channel with small buffers, less GPU memory and far slower"
    )
    on_event: str = _field(
        "",
        "shell command, run when the run ends, fails or hangs, with the facts as JSON on its "
        "standard input (docs/watching.md)",
    )
    monitor: bool = _field(
        False, "serve the run's pages while it lasts (--monitor; docs/monitor.md)"
    )
    keep_env: str = _field(
        "", "variables, separated by commas, to pass on to the ranks although they may do harm"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """The resources that a rank may use."""

    rlimit_as_gib: float = _field(
        -1.0,
        "RLIMIT_AS of each rank, GiB; -1: as predicted, never met by what fits; 0: none",
        at_least=-1,
    )
    guard_gib: float = _field(
        -1.0,
        "free memory, GiB, below which Airlock ends the process of the run that takes most of it, "
        "before the kernel ends one; -1: 2 % of the host's or the cgroup's, within 64 MiB and "
        "1 GiB; 0: never",
        at_least=-1,
    )


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

    path: str = _field("", "the data, as data.path")
    columns: str = _field("", "as data.columns, of this set; empty: data.columns")
    max_samples: int = _field(
        0, "evaluate so many of its samples, spread evenly; 0: all", at_least=0
    )


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
