"""Controls: requests of a user with the token, left in the control folder of a run or an inbox.

This is all that the server ever writes into a run folder. Who takes them up are the ranks, between
two steps, and the inbox's daemon.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from inbox import requests as inbox_requests
from inbox.layout import Layout
from monitor.http.json_api import ConflictError, NotFoundError
from monitor.runs.inside import text_inside
from monitor.runs.run_rows import read_status, state_of
from rundir import control
from rundir.paths import RunDir

RunRequest = Literal["pause", "resume", "stop", "save", "evaluate"]
InboxRequest = Literal["pause", "resume", "stop", "skip"]


def leave_for_run(run: RunDir, wanted: RunRequest) -> dict[str, str]:
    """Leave a request for a run; return its id and its file. Raises ApiError."""
    _check_takes_requests(run, wanted)
    with _checked(run.control, wanted):
        if wanted in ("save", "evaluate"):
            request = control.ask_once(run, wanted)
            return {"id": request.id, "file": f"control/{request.name}"}
        if wanted != "resume":
            control.ask(run, wanted)
        elif not control.withdraw(run, "pause") and read_status(run).get("phase") != "paused":
            raise ConflictError(f"run {run.run_id} is not paused", "it goes on already")
        return {"id": "", "file": f"control/{'stop' if wanted == 'stop' else 'pause'}"}


def _check_takes_requests(run: RunDir, wanted: str) -> None:
    """Raise ConflictError for a run that will never look at a request."""
    status = read_status(run)
    state = state_of(run, status)
    if state not in ("running", "paused"):
        raise ConflictError(
            f"run {run.run_id} has ended: {state}", f"./airlock doctor {run.run_id}   # why"
        )
    if status.get("phase") == "finishing" and wanted != "resume":
        raise ConflictError(f"run {run.run_id} has no steps left", "it ends by itself")
    with suppress(NotFoundError, tomllib.TOMLDecodeError):
        if "script" in tomllib.loads(text_inside(run, "config.toml")):
            raise ConflictError(
                f"run {run.run_id} is a script of yours, which looks at no requests",
                f"./airlock stop {run.run_id}",
            )


@contextmanager
def _checked(folder: Path, name: str) -> Iterator[None]:
    """Raise ConflictError for a folder that cannot be written, or leads out of the run folder."""
    listing = f"ls -la {shlex.quote(str(folder))}"
    if folder.is_symlink() or not folder.is_dir() or (folder / name).is_symlink():
        raise ConflictError(f"{folder} is no folder for requests", listing)
    try:
        yield
    except OSError as error:
        raise ConflictError(f"{folder} cannot be written: {error.strerror}", listing) from error


def leave_for_inbox(folder: Path | None, wanted: InboxRequest) -> dict[str, str]:
    """Leave a request for the daemon of an inbox; return its id and its file. Raises ApiError."""
    layout = inbox_layout(folder)
    with _checked(layout.control, wanted):
        if wanted == "pause":
            inbox_requests.pause(layout, "paused by airlock serve")
        elif wanted != "resume":
            path = inbox_requests.ask(layout, wanted)
            return {"id": path.name.partition(".")[2], "file": f"control/{path.name}"}
        elif not inbox_requests.resume(layout):
            raise ConflictError("the inbox is not paused", "it goes on already")
        return {"id": "", "file": "control/pause"}


def inbox_layout(folder: Path | None) -> Layout:
    """Return the paths of the inbox that is served. Raises NotFoundError without one."""
    if folder is None or not (folder / "inbox.lock").is_file():
        where = "no inbox is served" if folder is None else f"{folder} is no inbox"
        raise NotFoundError(where, "./airlock serve --inbox FOLDER   # one of ./airlock inbox")
    return Layout(folder)
