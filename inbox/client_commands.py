"""The commands beside `serve`: they read the folder, and leave requests in it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from inbox import claim, requests
from inbox.daemon_state import answer, holder_text, is_held
from inbox.job_verdict import verdict_of
from inbox.jobs import InboxJob, every_job, find_job
from inbox.layout import PRIORITIES, Layout
from rundir.errors import ExitCode, UserError
from rundir.units import clock_text

_ANSWERED_S = 10.0  # a daemon that waits answers at once; one that reads a large file, later
_prints_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@_prints_json
@click.pass_obj
def status(layout: Layout, *, as_json: bool) -> None:
    """Tell what the inbox does now; ends with 0 if it is healthy, idle or not."""
    _check(layout)
    state = answer(layout)
    click.echo(json.dumps(state) if as_json else "\n".join(_status_lines(state)))
    if state["is_running"] and not state["is_healthy"]:
        sys.exit(int(ExitCode.RANK_FAILED))


def _status_lines(state: dict[str, Any]) -> list[str]:
    lines = [f"{state['status']}: {state['why']}" if state["why"] else state["status"]]
    if state["current_file"]:
        steps = f"step {state['current_step']} of {state['total_steps'] or '?'}"
        lines.append(f"now: {state['current_file']} ({state['job']}, {steps})")
    if state["error"]:
        lines.append(f"error: {state['error']}")
    lines += [f"not taken yet: {path} {why}" for path, why in state["waiting"].items()]
    lines += [
        f"{name} has no job.json that can be read, and is left alone" for name in state["damaged"]
    ]
    counts = ", ".join(f"{num} in {folder}/" for folder, num in state["num"].items())
    held_by = f"; {state['held_by']}" if state["held_by"] else ""
    return [*lines, f"{counts}{held_by}"]


@click.command(name="list")
@_prints_json
@click.pass_obj
def list_jobs(layout: Layout, *, as_json: bool) -> None:
    """List what was dropped, in the order in which it is trained."""
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


def _row(state: str, job: InboxJob) -> dict[str, Any]:
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


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--priority", type=click.Choice(PRIORITIES), default="normal", show_default=True)
@click.pass_obj
def add(layout: Layout, files: tuple[Path, ...], *, priority: str) -> None:
    """Queue copies of FILES (or folders), which stay where they are."""
    for file in files:
        if not file.exists():
            raise UserError(f"{file} is not there", do=f"ls -l {shlex.quote(str(file.parent))}")
    try:
        layout.create()
        for file in files:
            job = claim.add(layout, file, priority)
            click.echo(f"{job.id}: {file.name} waits in the queue, {priority} priority")
    except OSError as error:
        do = f"df -h {layout.quoted}"
        raise UserError(f"it cannot be copied: {error}", do=do, code=ExitCode.PREFLIGHT) from error
    if not is_held(layout):
        click.echo(f"no inbox runs here yet: ./airlock inbox {layout.quoted} --profile PROFILE")


@click.command()
@click.pass_obj
def pause(layout: Layout) -> None:
    """Start no further training; the present one goes on."""
    _check(layout)
    requests.pause(layout, "paused on request; ./airlock inbox FOLDER resume goes on")
    click.echo("no further training is started; the present one goes on")


@click.command()
@click.pass_obj
def resume(layout: Layout) -> None:
    """Start trainings again."""
    _check(layout)
    was = requests.resume(layout)
    click.echo("trainings are started again" if was else "it was not paused")


@click.command()
@click.pass_obj
def stop(layout: Layout) -> None:
    """End the inbox: its training ends the step and saves, and goes on when it is started again."""
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


@click.command()
@click.argument("job", default="")
@click.pass_obj
def skip(layout: Layout, job: str) -> None:
    """Set JOB aside in failed/: one that waits, or (by default) the one that trains."""
    _request(layout, "skip", job)


@click.command()
@click.argument("job")
@click.pass_obj
def retry(layout: Layout, job: str) -> None:
    """Queue JOB again: one of failed/, or a duplicate that is to be trained all the same."""
    _request(layout, "retry", job)


@click.command()
@click.argument("job")
@click.argument("priority", type=click.Choice(PRIORITIES))
@click.pass_obj
def priority(layout: Layout, job: str, priority: str) -> None:
    """Let JOB, which waits, be trained earlier or later."""
    _request(layout, "priority", job, priority)


def _request(layout: Layout, request: str, word: str, priority: str = "") -> None:
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


COMMANDS = (status, list_jobs, add, pause, resume, stop, skip, retry, priority)
