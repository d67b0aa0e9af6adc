"""The state of a run in one word, and its row: of status.json, the owner's lock, the exit code."""

from __future__ import annotations

import os
import re
import shlex
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, get_args

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import json_inside, text_inside
from rundir.errors import ExitCode
from rundir.owner import is_owned
from rundir.paths import RunDir

State = Literal["running", "paused", "done", "stopped", "preempted", "failed", "crashed"]
STATES: tuple[State, ...] = get_args(State)
NUM_COLORS = 12

_INTERRUPTED = (ExitCode.INTERRUPTED_SAVED, ExitCode.INTERRUPTED_UNSAVED)
_ID = re.compile(r"\d{8}-\d{6}-(?P<name>.+)-[0-9a-f]{4}")
_MOST_COMMAND_BYTES = 64 << 10
_MOST_T = 1e11  # Unix seconds; a date beyond it is none
_NEW_S = 10.0  # so young, a run may have no owner yet
_CRASHED = "its launcher has ended without a word"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run at a glance; times are Unix seconds."""

    id: str
    name: str  # that it was given; else that of its profile
    profile: str
    state: State
    phase: str
    step: int
    total_steps: int | None
    loss: Any  # a number, None, or "nan" as rundir writes it
    lr: Any
    tokens_per_s: Any
    mfu: Any
    eta_s: Any
    started_t: float | None
    updated_t: float | None
    ended_t: float | None
    exit_code: int | None
    exit_meaning: str | None
    error: str | None
    waiting: str | None
    attempt: int
    num_ranks: int
    resumed_from: str | None
    color: int  # of NUM_COLORS, the same for a run wherever it is shown


def read_status(run: RunDir) -> dict[str, Any]:
    """Return status.json; {} where there is none yet, or it is not one."""
    with suppress(NotFoundError):
        status = json_inside(run, "status.json")
        if isinstance(status, dict):
            return status
    return {}


def rank_rows(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the ranks in a status."""
    ranks = status.get("ranks")
    return [row for row in ranks if isinstance(row, dict)] if isinstance(ranks, list) else []


def state_of(run: RunDir, status: dict[str, Any]) -> State:
    """Return the state of a run: what has an exit code, or no living owner, never runs."""
    code = status.get("exit_code")
    if isinstance(code, int):
        if code == ExitCode.DONE:
            return "done"
        if code in _INTERRUPTED:
            return "preempted" if status.get("preempted") else "stopped"
        return "failed"
    if not is_owned(run) and not _is_new(run):
        return "crashed"
    return "paused" if status.get("phase") == "paused" else "running"


def _is_new(run: RunDir) -> bool:
    """Return whether the run is being made: its owner is written right after its folder."""
    with suppress(OSError):
        return not os.path.lexists(run.owner) and time.time() - run.path.stat().st_mtime < _NEW_S
    return False


def row_of(run: RunDir, status: dict[str, Any] | None = None) -> RunRow:
    """Return the row of a run, with `status` if that has been read already."""
    status_ = read_status(run) if status is None else status
    state = state_of(run, status_)
    code = status_.get("exit_code")
    code = code if isinstance(code, int) else None
    has_ended = state not in ("running", "paused")
    return RunRow(
        id=run.run_id,
        name=name_of(run.run_id),
        profile=_text(status_.get("profile")) or "",
        state=state,
        phase=_text(status_.get("phase")) or "preparing",
        step=_whole(status_.get("step")) or 0,
        total_steps=_whole(status_.get("total_steps")),
        **{key: _figure(status_.get(key)) for key in ("loss", "lr", "tokens_per_s", "mfu")},
        eta_s=None if has_ended else _figure(status_.get("eta_s")),
        started_t=_time(status_.get("started_t")),
        updated_t=_time(status_.get("updated_t")),
        ended_t=_time(status_.get("updated_t")) if has_ended else None,
        exit_code=code,
        exit_meaning=_meaning(code),
        error=_text(status_.get("error")) or (_CRASHED if state == "crashed" else None),
        waiting=None if has_ended else _text(status_.get("waiting")),
        attempt=_whole(status_.get("attempt")) or 0,
        num_ranks=len(rank_rows(status_)),
        resumed_from=resumed_from(run),
        color=zlib.crc32(run.run_id.encode(errors="replace")) % NUM_COLORS,
    )


def name_of(run_id: str) -> str:
    """Return the name within a run's id: TIME-NAME-XXXX."""
    match = _ID.fullmatch(run_id)
    return match["name"] if match else run_id


def resumed_from(run: RunDir) -> str | None:
    """Return the id of the run that this one goes on from, as its command names it."""
    with suppress(NotFoundError, ValueError):
        typed = text_inside(run, "command.txt", most_bytes=_MOST_COMMAND_BYTES).partition("\n")[0]
        words = shlex.split(typed)
        for word, after in zip(words, [*words[1:], ""], strict=True):
            name, _, value = word.partition("=")
            if name == "--resume":
                return PurePath(value or after).name or None
    return None


def _meaning(code: int | None) -> str | None:
    if code is None:
        return None
    try:
        return ExitCode(code).meaning
    except ValueError:
        return f"exit code {code}"


def _figure(value: Any) -> float | str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number or isinstance(value, str) else None


def _time(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < _MOST_T else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
