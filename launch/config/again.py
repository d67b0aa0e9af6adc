"""`--again RUN`: the settings of a run, or of a model's card, for a new run that does it again.

One that is still alive cannot be gone on from (`--resume`): its owner removes old checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from machine.processes.runs import OVER, processes_of
from machine.typed import again, console_program, ls_runs
from rundir.card.model_card import RECORDS, base_commit
from rundir.config import RunConfig, Sources
from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.owner import is_owned, owner_of
from rundir.paths import RunDir, find_run, runs_folder
from rundir.prepared import Prepared, PreparedData, read_prepared

_CHANGED = {
    "files": "their files have changed",
    "tokenizer": "the tokenizer or the chat template has changed",
}


def run_to_repeat(name: str) -> RunDir:
    """Return the run called `name`, or the records in an exported model's folder.

    Raises UserError if there is neither.
    """
    for place in (name, str(Path(name) / RECORDS)):
        try:
            return find_run(place)
        except ValueError:
            continue
    raise UserError(
        f"no run or exported model {name!r}: neither a folder with {RECORDS}/config.toml nor a run "
        f"in {runs_folder()}",
        do=ls_runs(),
    )


def profile_of(name: str) -> str:
    """Return the profile of a run to repeat. Raises UserError."""
    run = run_to_repeat(name)
    return config_of(run, do=f"the command in {run.command}").profile


def config_of(run: RunDir, *, do: str) -> RunConfig:
    """Return the configuration of a run. Raises UserError, with `do` for one of a script."""
    try:
        config = read_config(run.config)
    except (OSError, ValueError) as error:
        raise UserError(f"{run.config}: {error}", do=ls_runs()) from error
    if config.script is not None:
        text = f"{run.run_id} ran {config.script.path}, whose settings and models are its own"
        raise UserError(text, do=do)
    return config


def pinned_revision(config: RunConfig, sources: Sources, run: RunDir) -> str:
    """Return the commit of the Hub's model that `run` had, unless another model is named now."""
    if config.model.revision or not sources["model.path"].startswith("run "):
        return config.model.revision
    try:
        return base_commit(run)
    except (OSError, ValueError, KeyError, TypeError):  # it ended before its model was there
        return ""


def differences(before: RunDir, now: Prepared) -> str | None:
    """Return a line about data that are not those of the run that is done again, or None."""
    try:
        was = read_prepared(before)
    except (OSError, ValueError, KeyError, TypeError):
        return f"airlock: {before.path} does not say what its data were; nothing is compared"
    changes = list(data_changes(was.train, now.train))
    if was.evaluation and now.evaluation:
        held_out = data_changes(was.evaluation, now.evaluation)
        changes += [f"held out: {path}" for path in held_out if path not in changes]
    if not changes:
        return f"the data are those of {before.path}"
    return f"airlock: THE DATA ARE NOT THOSE OF {before.path}: {'; '.join(changes)}"


def data_changes(before: PreparedData, now: PreparedData) -> Iterator[str]:
    """Yield what is not the same about data."""
    if not before.made_of or not now.made_of:  # prepared by an earlier version
        return
    if before.is_streamed != now.is_streamed:
        words = ("prepared", "streamed")
        yield f"they were {words[before.is_streamed]}, and are {words[now.is_streamed]}"
        return
    if (now.made_of | before.made_of) == now.made_of and _size(before) != _size(now):
        yield f"they were {_size(before)}, and are {_size(now)}: another version tokenised them"
    for name, value in now.made_of.items():
        was = before.made_of.get(name, value)
        if was == value:
            continue
        (old, old_weights), (new, new_weights) = _mixture(was), _mixture(value)
        if name == "files" and old == new:
            yield f"the weights of their files were {old_weights}, are {new_weights}"
        else:
            yield _CHANGED.get(name) or f"{name} was {was}, is {value}"


def _size(data: PreparedData) -> str:
    return f"{data.num_samples:,} samples of {data.num_tokens:,} tokens"


def _mixture(files: str) -> tuple[list[str], str]:
    """Return the digests of DIGEST[:WEIGHT] …, and their weights in words."""
    parts = [word.partition(":") for word in files.split(" ")]
    return [digest for digest, _, _ in parts], " and ".join(weight or "1" for *_, weight in parts)


def check_unowned(run: RunDir, profile: str) -> None:
    """Raise UserError, with who holds it, if `run` has an owner or processes that are alive.

    `profile` is that of the run to start, for the advice.
    """
    processes = processes_of(run)
    if processes.phase not in OVER and (processes.launcher is not None or is_owned(run)):
        owner = owner_of(run)
        who = owner or (
            f"process {processes.launcher.pid}" if processes.launcher else "another process"
        )
        what = f"run {run.run_id} is still going on, and its checkpoints are its own: {who}"
    elif processes.processes:
        pids = ", ".join(str(process.pid) for process in processes.processes)
        what = f"the launcher of run {run.run_id} is gone, but processes of it are alive: {pids}"
    else:
        return
    raise UserError(
        what,
        do=f"{console_program()} stop {run.run_id} && {again(profile)}   # ends it first; a live "
        "one saves",
        code=ExitCode.PREFLIGHT,
    )
