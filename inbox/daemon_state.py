"""What an inbox does: state.json, the answer of `status`, and the lock of its one daemon.

The kernel frees the lock however the daemon ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from inbox.attempt import run_of, status_of
from inbox.jobs import jobs_in
from inbox.layout import STATES, Layout, entries
from inbox.requests import paused
from rundir.atomic import write_text
from rundir.errors import ExitCode, UserError
from rundir.files.lock import is_locked, lock
from rundir.files.reading import json_object

VERSION = 1
HEARTBEAT_S = 30.0  # an unchanged state is written anew so often
_FULL_BYTES = 64 * 1024
_SILENT_S = 180.0  # a daemon that has not written for so long is said not to answer


@dataclass(slots=True, kw_only=True)
class State:
    """What a daemon does. Times are Unix seconds."""

    status: str = "idle"  # idle, training, hashing, scoring, paused, held, waiting or stopping
    why: str = ""  # in words
    pid: int = field(default_factory=os.getpid)
    started_t: float = field(default_factory=time.time)
    looked_t: float = 0.0
    watches_by: str = ""  # inotify or polling
    job: str = ""
    waiting: dict[str, str] = field(default_factory=dict)  # not taken yet: name -> why
    damaged: list[str] = field(default_factory=list)  # folders of jobs that cannot be read
    error: str = ""  # the last failure of the daemon itself, as a full disk; "" once it is over


class StateFile:
    """Writes the state when it has changed, and now and then to show that the daemon lives."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._written: dict[str, Any] = {}
        self._at = float("-inf")

    def write(self, state: State) -> None:
        """Replace state.json if need be. Raises OSError."""
        table = asdict(state)
        fields = {key: value for key, value in table.items() if key != "looked_t"}
        if fields == self._written and time.monotonic() - self._at < HEARTBEAT_S:
            return
        text = json.dumps({"v": VERSION, **table}, indent=1) + "\n"
        write_text(self._layout.state, text, durable=False)
        self._written, self._at = fields, time.monotonic()


def answer(layout: Layout) -> dict[str, Any]:
    """Return what `status --json` prints: the daemon, its job, and what lies in each folder.

    The fields `status`, `current_file`, `current_step`, `total_steps` and `error` are those of the
    daemon that this one takes the place of.
    """
    written, is_running = json_object(layout.state), is_held(layout)
    full = _full_disk(layout)
    job = next((waiting for waiting in jobs_in(layout.processing)), None)
    attempt = job.attempts[-1] if job is not None and job.attempts else None
    run = None if job is None or attempt is None else run_of(job, attempt, layout)
    run_status = status_of(run)
    status = written.get("status", "starting") if is_running else "stopped"
    silent_s = time.time() - written.get("looked_t", 0.0)
    is_busy = status in ("hashing", "scoring")  # which take as long as they take
    is_healthy = is_running and (is_busy or abs(silent_s) < _SILENT_S)
    return {
        "status": status,
        "why": _why(layout, status, written, is_running=is_running, is_healthy=is_healthy),
        "is_running": is_running,
        "is_healthy": is_healthy,
        "held_by": holder_text(layout) if is_running else None,
        "watches_by": written.get("watches_by"),
        "paused": paused(layout),
        "current_file": None if job is None else job.name,
        "job": None if job is None else job.id,
        "attempt": None if attempt is None else attempt.number,
        "current_step": run_status.get("step", 0),
        "total_steps": run_status.get("total_steps") or 0,
        "loss": run_status.get("loss"),
        "learning_rate": run_status.get("lr"),
        "phase": run_status.get("phase"),
        "run": None if run is None else str(run.path),
        "error": full or run_status.get("error") or written.get("error") or None,
        "waiting": written.get("waiting", {}) if is_running else {},
        "damaged": written.get("damaged", []),
        "num": {state: _num(layout, state) for state in STATES},
        "updated_t": written.get("looked_t"),
    }


def _full_disk(layout: Layout) -> str:
    """Return that the disk is full, which keeps the daemon from writing it; "" if it is not."""
    with contextlib.suppress(OSError):
        free_bytes = shutil.disk_usage(layout.path).free
        if free_bytes < _FULL_BYTES:
            return f"the disk is full ({free_bytes} bytes free): it goes on when there is room"
    return ""


def _num(layout: Layout, state: str) -> int:
    return sum(not entry.name.startswith(".") for entry in entries(layout.path / state))


def _why(
    layout: Layout, status: str, state: dict[str, Any], *, is_running: bool, is_healthy: bool
) -> str:
    if not is_running:
        return f"no inbox runs here; start one: ./airlock inbox {layout.quoted} --profile PROFILE"
    if not is_healthy:
        return f"it has not looked at its folder for minutes: {holder_text(layout)}"
    if status == "idle":
        return "idle and healthy: nothing to train, and it takes what is dropped"
    return str(state.get("why", ""))


@contextlib.contextmanager
def held(layout: Layout) -> Iterator[None]:
    """Hold the lock of the folder; raise UserError, naming the holder, if another process does.

    What is started here does not inherit the lock.
    """
    file = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not lock(file):
            raise UserError(
                f"another inbox has {layout.path}: {holder_text(layout)}",
                do=f"./airlock inbox {layout.quoted} status   # what it does; stop: ends it",
                code=ExitCode.PREFLIGHT,
            )
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since_t": time.time()}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode() + b"\n", 0)
        yield
    finally:
        os.close(file)


def is_held(layout: Layout) -> bool:
    """Return whether a daemon lives, anywhere that shares the folder's locks."""
    try:
        file = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_locked(file)
    finally:
        os.close(file)


def holder_text(layout: Layout) -> str:
    """Return who held the lock last, in words."""
    try:
        holder = json.loads(layout.lock.read_text(encoding="utf-8"))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since_t"]))
        return f"process {holder['pid']} on {holder['host']}, since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "a process that has just started"
