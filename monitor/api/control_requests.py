"""Controls: requests of a user with the token, left in the control folder of a run or an inbox.

This is all that the server ever writes into a run folder. Who takes them up are the ranks, between
two steps, and the inbox's daemon.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.requests import Request

from inbox import requests as inbox_requests
from inbox.layout import Layout
from monitor.http.api_errors import BadRequestError, ConflictError, NotFoundError
from monitor.runs.inside import text_inside
from monitor.runs.run_list import Runs
from monitor.runs.run_rows import read_status, state_of
from rundir import control
from rundir.paths import RunDir

OF_RUN = ("pause", "resume", "stop", "save", "evaluate")
OF_INBOX = ("pause", "resume", "stop", "skip")


def body_schema(requests: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON schema of a control's body."""
    return {
        "type": "object",
        "required": ["request"],
        "properties": {"request": {"type": "string", "enum": list(requests)}},
    }


async def asked_of(request: Request, allowed: tuple[str, ...]) -> str:
    """Return the request in a body. Raises BadRequestError."""
    data = await request.body()
    hint = 'a body such as {"request": "' + allowed[0] + f'"}}; one of {", ".join(allowed)}'
    try:
        body = json.loads(data)
        wanted = body["request"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequestError("the body names no request", hint) from error
    if not isinstance(wanted, str) or wanted not in allowed:
        raise BadRequestError(f"no request {str(wanted)[:80]!r}", hint)
    return wanted


def control_run(runs: Runs, name: str, wanted: str) -> dict[str, str]:
    """Leave a request for a run; return its id and its file. Raises ApiError."""
    run = runs.find(name)
    _check_takes_requests(run, wanted)
    _check_folder(run.control, wanted)
    try:
        return _left(run, wanted)
    except OSError as error:
        raise ConflictError(
            f"{run.control} cannot be written: {error.strerror}",
            f"ls -ld {shlex.quote(str(run.control))}",
        ) from error


def _left(run: RunDir, wanted: str) -> dict[str, str]:
    if wanted in ("pause", "stop"):
        control.ask(run, "pause" if wanted == "pause" else "stop")
        return {"id": "", "file": f"control/{wanted}"}
    if wanted == "resume":
        if not control.withdraw(run, "pause") and read_status(run).get("phase") != "paused":
            raise ConflictError(f"run {run.run_id} is not paused", "it goes on already")
        return {"id": "", "file": "control/pause"}
    asked = control.ask_once(run, "save" if wanted == "save" else "evaluate")
    return {"id": asked.id, "file": f"control/{asked.name}"}


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


def _check_folder(folder: Path, name: str) -> None:
    """Raise ConflictError where a link would lead a request out of the run folder."""
    if folder.is_symlink() or not folder.is_dir() or (folder / name).is_symlink():
        raise ConflictError(
            f"{folder} is no folder for requests", f"ls -la {shlex.quote(str(folder))}"
        )


def control_inbox(folder: Path | None, wanted: str) -> dict[str, str]:
    """Leave a request for the daemon of an inbox; return its id and its file. Raises ApiError."""
    layout = inbox_layout(folder)
    _check_folder(layout.control, wanted)
    try:
        if wanted == "pause":
            inbox_requests.pause(layout, "paused by airlock serve")
            return {"id": "", "file": "control/pause"}
        if wanted == "resume":
            if not inbox_requests.resume(layout):
                raise ConflictError("the inbox is not paused", "it goes on already")
            return {"id": "", "file": "control/pause"}
        path = inbox_requests.ask(layout, wanted)
    except OSError as error:
        raise ConflictError(
            f"{layout.control} cannot be written: {error.strerror}",
            f"ls -ld {shlex.quote(str(layout.control))}",
        ) from error
    return {"id": path.name.partition(".")[2], "file": f"control/{path.name}"}


def inbox_layout(folder: Path | None) -> Layout:
    """Return the paths of the inbox that is served. Raises NotFoundError without one."""
    if folder is None or not (folder / "inbox.lock").is_file():
        where = "no inbox is served" if folder is None else f"{folder} is no inbox"
        raise NotFoundError(where, "./airlock serve --inbox FOLDER   # one of ./airlock inbox")
    return Layout(folder)
