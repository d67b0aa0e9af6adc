"""What the options and variables of other launchers and training scripts are in Airlock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal, get_args, get_type_hints

from rundir.config import SECTIONS

_BATCH = (
    "micro_batch_size: rows a rank computes at once; the samples of a step, over all ranks, are "
    "train.global_batch_size"
)
_IN_FOLDER = "each run makes a folder of its own there; --name NAME is part of what it is called"
_MEETING = "the ranks are of one node, and meet without an address"
_SHARDING = (
    "Airlock trains with DDP: each rank holds the whole model, which train.method=qlora makes "
    "small; train.shard_optimizer=true shares out the optimizer's states"
)
_WHEN = "evaluations and checkpoints are counted in steps: train.eval_every_steps and so on"
_PRECISION = "the weights' type is model.dtype: bfloat16 or float32"
_LOGS = "what a rank prints: tail -f {runs}/latest/logs/attempt*/rank*.log"
_IN_PROFILE = "what is configured stands in a profile, a TOML file, or in --set"

# Settings that scripts read from variables. Others, as PATH and MODEL, may mean something else.
_VARIABLES = (
    "BATCH_SIZE",
    "DATA_PATH",
    "DATASET_PATH",
    "EVAL_STEPS",
    "GLOBAL_BATCH_SIZE",
    "LEARNING_RATE",
    "LORA_R",
    "LORA_RANK",
    "MAX_LENGTH",
    "MAX_SAMPLES",
    "MAX_SEQ_LENGTH",
    "MAX_STEPS",
    "MICRO_BATCH_SIZE",
    "MODEL_NAME",
    "MODEL_PATH",
    "NPROC_PER_NODE",
    "NUM_EPOCHS",
    "SAVE_STEPS",
)

Kind = Literal["setting", "option", "variable", "profile", "resume", "data", "computed", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a flag is in Airlock: the `name` of a setting, an option or a variable.

    `of_flag`: of a flag that has no value, or true or false; the value to set where it is true.
    """

    kind: Kind
    name: str = ""
    note: str = ""
    of_flag: str = ""
    values: Mapping[str, str] = field(default_factory=dict)  # another program's words for values


def _settings() -> dict[str, Meaning]:
    found = {
        "eval": "data.eval_path",
        "eval_data": "data.eval_path",
        "eval_steps": "train.eval_every_steps",
        "eval_file": "data.eval_path",
        "eval_dataset": "data.eval_path",
        "grad_clip": "train.max_grad_norm",
        "learning_rate": "train.learning_rate",
        "logging_steps": "train.log_every_steps",
        "lora_r": "train.lora_rank",
        "lora_target_modules": "train.lora_targets",
        "lr": "train.learning_rate",
        "lr_scheduler_type": "train.schedule",
        "max_length": "data.max_seq_length",
        "max_seq_len": "data.max_seq_length",
        "model_max_length": "data.max_seq_length",
        "num_epochs": "train.epochs",
        "num_train_epochs": "train.epochs",
        "save_steps": "train.checkpoint_every_steps",
        "save_total_limit": "train.keep_checkpoints",
        "validation_file": "data.eval_path",
    }
    models = ("model", "model_id", "model_name", "model_name_or_path", "model_path")
    sizes = ("batch_size", "eval_batch_size", "per_device_train_batch_size")
    return (
        {flag: Meaning(kind="setting", name=key) for flag, key in found.items()}
        | {flag: Meaning(kind="setting", name="model.path") for flag in models}
        | {
            flag: Meaning(kind="setting", name="train.micro_batch_size", note=_BATCH)
            for flag in (*sizes, "per_device_eval_batch_size")
        }
        | {
            flag: Meaning(kind="setting", name="train.method", of_flag="lora")
            for flag in ("lora", "use_lora", "use_peft")
        }
        | {
            flag: Meaning(kind="setting", name="train.method", of_flag="qlora")
            for flag in ("qlora", "use_qlora", "load_in_4bit")
        }
        | {
            "bf16": Meaning(kind="setting", name="model.dtype", of_flag="bfloat16"),
            "optim": Meaning(
                kind="setting",
                name="train.optimizer",
                values={
                    "adamw_torch": "adamw",
                    "adamw_torch_fused": "adamw",
                    "adamw_hf": "adamw",
                    "adamw_8bit": "adamw-8bit",
                    "adamw_bnb_8bit": "adamw-8bit",
                    "paged_adamw_8bit": "adamw-8bit",
                },
            ),
        }
    )


def _options() -> dict[str, Meaning]:
    num_ranks = ("nproc_per_node", "nproc", "num_processes", "num_gpus", "ngpus", "gpus", "n_gpu")
    data = ("dataset", "dataset_name", "dataset_path", "data_path", "data_file", "train_file")
    resumed = ("resume_from_checkpoint", "resume_from", "checkpoint", "checkpoint_path")
    return (
        {flag: Meaning(kind="option", name="--num-gpus") for flag in num_ranks}
        | {flag: Meaning(kind="data", name="--data") for flag in (*data, "train_data")}
        | {flag: Meaning(kind="resume", name="--resume") for flag in resumed}
        | {flag: Meaning(kind="profile") for flag in ("profile", "config")}
        | {"run_name": Meaning(kind="option", name="--name")}
        | {
            flag: Meaning(kind="variable", name="AIRLOCK_RUNS_DIR", note=_IN_FOLDER)
            for flag in ("output_dir", "out_dir")
        }
        | {"gpu_ids": Meaning(kind="variable", name="CUDA_VISIBLE_DEVICES")}
        | {
            flag: Meaning(kind="computed")
            for flag in ("gradient_accumulation_steps", "grad_accum", "warmup_ratio")
        }
    )


def _dropped() -> dict[str, Meaning]:
    with_value = {
        _MEETING: "nnodes num_machines node_rank machine_rank local_rank master_addr master_port "
        "rdzv_backend rdzv_endpoint rdzv_id rdzv_conf main_process_ip main_process_port",
        _SHARDING: "deepspeed deepspeed_config zero_stage fsdp fsdp_config tensor_parallel_size",
        _WHEN: "save_strategy eval_strategy evaluation_strategy logging_strategy",
        _PRECISION: "mixed_precision precision",
        _LOGS: "log_level log_dir logging_dir redirects tee",
        _IN_PROFILE: "config_file",
        "": "dataloader_num_workers num_workers num_cpu_threads_per_process start_method",
    }
    without = {
        _MEETING: "standalone multi_gpu use_env no_python",
        _SHARDING: "use_deepspeed use_fsdp",
        _PRECISION: "fp16 tf32",
        _LOGS: "verbose debug",
        "": "do_train do_eval overwrite_output_dir",
    }
    found: dict[str, Meaning] = {}
    for table, of_flag in ((with_value, ""), (without, "true")):
        for note, flags in table.items():
            one = Meaning(kind="dropped", note=note, of_flag=of_flag)
            found |= dict.fromkeys(flags.split(), one)
    return found


_MEANINGS: Mapping[str, Meaning] = MappingProxyType(_settings() | _options() | _dropped())


def meaning_of(flag: str) -> Meaning | None:
    """Return what a flag of another program is in Airlock; None if nothing is like it."""
    if not re.fullmatch(r"--[A-Za-z][A-Za-z0-9_-]+", flag):
        return None
    name = flag[2:].replace("-", "_").lower()
    if name in _MEANINGS:
        return _MEANINGS[name]
    keys = [(section, cls) for section, cls in SECTIONS.items() if name in _names(cls)]
    if len(keys) != 1:
        return None
    section, cls = keys[0]
    hint = get_type_hints(cls)[name]
    is_flag = hint is bool or True in get_args(hint)
    of_flag = "true" if is_flag else ""
    return Meaning(kind="setting", name=f"{section}.{name}", of_flag=of_flag)


def unread_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each setting that stands in a variable, as scripts of others read it."""
    lines = []
    for name in _VARIABLES:
        meaning, value = meaning_of(f"--{name.lower()}"), environ.get(name, "")
        if meaning is not None and value:
            option = "--set " if meaning.kind == "setting" else ""
            here = f"{option}{meaning.name}{'=' if option else ' '}{value}"
            lines.append(f"airlock: {name}={value} is not read; here it is {here}")
    return lines


def _names(cls: type) -> set[str]:
    return {item.name for item in fields(cls)}
