"""`airlock doctor [RUN | FILE | FOLDER | -]... [--pid PID] [--json]`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from doctor.logs.diagnosis import diagnose
from doctor.logs.rules import RuleError
from doctor.logs.verdict import Verdict
from doctor.outside.judge import of_process
from doctor.runs.hang_verdict import of_hang
from doctor.runs.run_folder import find_folder, of_run, read_state
from machine.processes.runs import processes_of, run_folder_of
from rundir.errors import UserError
from rundir.events import read_events
from rundir.paths import RunDir, runs_folder
from state.try_next import tries_after, tries_lines


def doctor(
    names: Sequence[str], console: Console, *, as_json: bool, pid: int | None = None
) -> None:
    """Print the verdict on `names`, or on the job of process `pid`, or else on the latest run.

    Raises UserError.
    """
    if names and pid is not None:
        raise UserError(
            f"--pid {pid} and {names[0]} are two things to look at",
            do=f"./airlock doctor --pid {pid}",
        )
    try:
        verdict = _verdict(names) if pid is None else _of_pid(pid)
    except RuleError as error:
        raise UserError(str(error), do="fix that rule: docs/doctor.md") from error
    is_run = pid is None and len(names) <= 1
    run = find_folder(names[0] if names else "latest") if is_run else None
    state = None if run is None else read_state(run, read_events(run.events))
    if as_json:
        tries = [] if run is None or state is None else tries_after(run, state)
        answer = verdict.as_json() | ({"try_next": tries} if tries else {})
        console.out(json.dumps(answer), highlight=False)
        return
    more = [] if run is None or state is None else tries_lines(run, state)
    console.out("\n".join([*verdict.lines(), *([""] if more else []), *more]), highlight=False)


def _verdict(names: Sequence[str]) -> Verdict:
    if len(names) == 1 and (verdict := of_hang(Path(names[0]))) is not None:
        return verdict  # of an incident folder, wherever it was unpacked
    run = find_folder(names[0] if names else "latest") if len(names) <= 1 else None
    if run is not None:
        return of_run(run)
    if not names:
        raise UserError(
            f"there is no run in {runs_folder()}", do="./airlock doctor RUN, FILE, FOLDER or -"
        )
    return diagnose(names)


def _of_pid(pid: int) -> Verdict:
    """Return the verdict on a live process; if it is of a run of Airlock's own, on that run."""
    folder = run_folder_of(pid)
    if folder is not None and processes_of(RunDir(folder)).launcher is not None:
        return of_run(RunDir(folder))
    return of_process(pid)
