"""What to try after a failure by memory or a hang, as commands: the one that was typed, changed.

Made from the run folder alone, so that the report and the doctor say the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from machine.typed import console_program
from rundir.config import RunConfig
from rundir.config_file import read_config
from rundir.errors import ExitCode
from rundir.paths import RunDir
from state.run_state import RunState

_SUBSET = 100  # samples
_LEAST_TOKENS = 64
_MOST = 6
_OF_MEMORY = re.compile(r"out of memory|bad_alloc|MemoryError|[Cc]annot allocate memory|ENOMEM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One change to a run, in words and as settings; `num_ranks` 0 leaves their number."""

    what: str
    settings: Mapping[str, str] = field(default_factory=dict)
    num_ranks: int = 0


def tries_after(run: RunDir, state: RunState) -> list[dict[str, Any]]:
    """Return commands to try after the failure of `run`, each as {"what": …, "command": …}.

    None for failures of other kinds, for scripts, and where the run folder cannot be read.
    """
    kind = _kind(state)
    if not kind or state.of_script:
        return []
    try:
        config = read_config(run.config)
        typed = run.command.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, ValueError, IndexError):
        return []
    is_launched = typed and not re.search(r" --plain\b|python -m train", typed)
    tries = _tries(config)
    in_order = [tries[part] for part in _ORDER[kind] if part in tries]
    kept = [try_ for try_ in in_order if is_launched or not try_.num_ranks]
    if " --resume " in f"{typed} ":  # it needs the data as they were
        kept = [try_ for try_ in kept if not any(key.startswith("data.") for key in try_.settings)]
    commands = [{"what": try_.what, "command": _changed(typed, try_)} for try_ in kept[:_MOST]]
    if is_launched:
        climb = f"{console_program()} check --climb {_as_options(config)}"
        what = "from 2 examples on one rank up to this: at which step it breaks"
        commands.append({"what": what, "command": climb})
    return commands


def tries_lines(run: RunDir, state: RunState) -> list[str]:
    """Return the same as lines for people; none if there is nothing to try."""
    tries = tries_after(run, state)
    lines = [f"→ {row['command']}   # {row['what']}" for row in tries]
    return ["to try next, each by itself:", *lines] if lines else []


def _kind(state: RunState) -> str:
    root = state.root_failure()
    if state.status.exit_code == ExitCode.HANG or (root and root.exit_code == ExitCode.HANG):
        return "hang"
    error_text = f"{root.title if root else ''} {state.status.error or ''}"
    is_proven = ExitCode.OUT_OF_MEMORY in (state.status.exit_code, root and root.exit_code)
    return "memory" if is_proven or _OF_MEMORY.search(error_text) else ""


# What to try, in order: what takes less memory, the mildest first; what leaves out a part that may
# hang: others, evaluations, data, the device.
_ORDER = {
    "memory": ("batches", "checkpointing", "shorter", "evaluation", "ranks", "subset", "device"),
    "hang": ("ranks", "evaluation", "subset", "shorter", "device"),
}


def _tries(config: RunConfig) -> dict[str, Try]:
    """Return each change that makes a difference to this run, by what it changes."""
    train, data, launch, tries = config.train, config.data, config.launch, dict[str, Try]()
    ranks, length = max(1, launch.num_ranks), data.max_seq_length // 2
    at_once = min(train.micro_batch_size, -(-train.global_batch_size // ranks))
    if at_once > 1:
        tries["batches"] = Try(
            what=f"{at_once // 2} instead of {at_once} rows at once, as many samples a step",
            settings={"train.micro_batch_size": str(at_once // 2)},
        )
    elif train.global_batch_size > ranks:
        tries["batches"] = Try(
            what=f"{ranks} instead of {train.global_batch_size} samples a step",
            settings={"train.global_batch_size": str(ranks)},
        )
    if config.model.gradient_checkpointing is not True:
        settings = {"model.gradient_checkpointing": "true"}
        tries["checkpointing"] = Try(
            what="activations are computed twice, slower", settings=settings
        )
    if length >= _LEAST_TOKENS:
        settings = {"data.max_seq_length": str(length), "data.on_long_row": "truncate"}
        what = "longer samples are cut off, none is left out"
        tries["shorter"] = Try(what=what, settings=settings)
    if train.evaluate and (data.eval_path or data.held_out_share or config.evaluation):
        settings = {"train.evaluate": "false"}
        settings |= {"train.early_stop_evaluations": "0"} if train.early_stop_evaluations else {}
        tries["evaluation"] = Try(what="no evaluation", settings=settings)
    if launch.num_ranks != 1:
        tries["ranks"] = Try(what="one rank, which waits for no other", num_ranks=1)
    if not data.max_samples or data.max_samples > _SUBSET:
        settings = {"data.max_samples": str(_SUBSET)}
        tries["subset"] = Try(what=f"the first {_SUBSET} samples alone", settings=settings)
    if launch.device != "cpu" and not launch.needs_gpu:
        settings = {"launch.device": "cpu"}
        tries["device"] = Try(what="without a GPU: an error is said where it is", settings=settings)
    return tries


def _changed(typed: str, try_: Try) -> str:
    """Return the command that was typed, with more options behind: the last one counts."""
    words = ["--num-gpus", str(try_.num_ranks)] if try_.num_ranks else []
    for key, value in try_.settings.items():
        words += ["--set", f"{key}={value}"]
    return f"{typed} {shlex.join(words)}"


def _as_options(config: RunConfig) -> str:
    words = [config.profile]
    words += ["--data", config.data.path] if config.data.path else []
    words += ["--num-gpus", str(config.launch.num_ranks)] if config.launch.num_ranks else []
    return shlex.join(words)
