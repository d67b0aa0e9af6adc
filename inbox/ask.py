"""What the commands beside `serve` do: they read the folder, and leave requests in it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from inbox import claim, requests
from inbox.ending import verdict_of
from inbox.jobs import Job, every_job, find_job
from inbox.layout import Layout
from inbox.lock import holder_text, is_held
from inbox.state import answer
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.units import clock_text

_ANSWERED_S = 10.0  # a daemon that waits answers at once; one that reads a large file, later


def status(layout: Layout, *, as_json: bool) -> None:
    """Print what the inbox does; exit with 10 if there is a daemon that does not answer."""
    _check(layout)
    state = answer(layout)
    click.echo(json.dumps(state) if as_json else "\n".join(_status_lines(state)))
    if state["is_running"] and not state["is_healthy"]:
        sys.exit(int(ExitCode.RANK_FAILED))


def _status_lines(status: dict[str, Any]) -> list[str]:
    lines = [f"{status['status']}: {status['why']}" if status["why"] else status["status"]]
    if status["current_file"]:
        steps = f"step {status['current_step']} of {status['total_steps'] or '?'}"
        lines.append(f"now: {status['current_file']} ({status['job']}, {steps})")
    if status["error"]:
        lines.append(f"error: {status['error']}")
    lines += [f"not taken yet: {path} {why}" for path, why in status["waiting"].items()]
    lines += [
        f"{name} has no job.json that can be read, and is left alone" for name in status["damaged"]
    ]
    counts = ", ".join(f"{num} in {state}/" for state, num in status["num"].items())
    held_by = f"; {status['held_by']}" if status["held_by"] else ""
    return [*lines, f"{counts}{held_by}"]


def list_jobs(layout: Layout, *, as_json: bool) -> None:
    """Print each job with its state."""
    _check(layout)
    rows = [_row(state, job) for state, job in every_job(layout)]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for row in rows:
        attempts = f", attempt {row['attempts']}" if row["attempts"] else ""
        reason = f": {row['reason']}" if row["reason"] else ""
        head = f"{row['state']:<11}{row['priority']:<7}{row['job']}  {row['name']}"
        click.echo(f"{head}{attempts}{reason}")
    if not rows:
        click.echo(f"nothing was dropped yet; drop files into {layout.inbox}")


def _row(state: str, job: Job) -> dict[str, Any]:
    last = job.attempts[-1] if job.attempts else None
    verdict = verdict_of(job)
    return {
        "job": job.id,
        "name": job.name,
        "state": state,
        "priority": job.priority,
        "attempts": len(job.attempts),
        "result": verdict.get("result"),
        "reason": verdict.get("reason") or (last.reason if last else ""),
    }


def add(layout: Layout, files: Sequence[Path], priority: str) -> None:
    """Queue copies of files. Raises UserError."""
    for file in files:
        if not file.exists():
            raise UserError(f"{file} is not there", do=f"ls -l {shlex.quote(str(file.parent))}")
    try:
        layout.create()
        for file in files:
            job = claim.add(layout, file, priority)
            click.echo(f"{job.id}: {file.name} waits in the queue, {priority} priority")
    except OSError as error:
        raise UserError(
            f"it cannot be copied: {error}",
            do=f"df -h {layout.quoted}",
            code=ExitCode.PREFLIGHT,
        ) from error
    if not is_held(layout):
        click.echo(f"no inbox runs here yet: ./airlock inbox {layout.quoted} --profile PROFILE")


def pause(layout: Layout) -> None:
    """Have no further training started."""
    _check(layout)
    requests.pause(layout, "paused on request; ./airlock inbox FOLDER resume goes on")
    click.echo("no further training is started; the present one goes on")


def resume(layout: Layout) -> None:
    """Have trainings started again."""
    _check(layout)
    was = requests.resume(layout)
    click.echo("trainings are started again" if was else "it was not paused")


def stop(layout: Layout) -> None:
    """Ask the daemon to end, and wait until it has. Raises UserError if none runs."""
    _check(layout)
    if not is_held(layout):
        do = f"./airlock inbox {layout.quoted} --profile PROFILE   # starts one"
        raise UserError(f"no inbox runs in {layout.path}", do=do)
    who, began = holder_text(layout), time.monotonic()
    requests.ask(layout, "stop")
    click.echo(f"waits for {who} to end: its training ends the step and saves")
    while is_held(layout):
        time.sleep(0.1)
    click.echo(f"stopped, after {clock_text(time.monotonic() - began)}")


def one(layout: Layout, request: str, word: str, priority: str = "") -> None:
    """Ask for something to be done with one job, and wait for a moment until it is."""
    _check(layout)
    match = find_job(layout, word) if word else None
    if word and match is None:
        do = f"./airlock inbox {layout.quoted} list"
        raise UserError(f"there is no job {word!r}, or several are called so", do=do)
    job = match[1].id if match else ""
    path = requests.ask(layout, request, job=job, priority=priority)
    if not is_held(layout):
        click.echo(f"{request}: done when an inbox runs here again")
        return
    deadline = time.monotonic() + _ANSWERED_S
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    is_done = not path.exists()
    click.echo(f"{request} {job or 'the present job'}: {'done' if is_done else 'is asked for'}")


def _check(layout: Layout) -> None:
    """Raise UserError unless the folder is that of an inbox."""
    if not layout.control.is_dir():
        raise UserError(
            f"{layout.path} is no inbox: it has no control folder",
            do=f"./airlock inbox {layout.quoted} --profile PROFILE   # makes it one",
        )
