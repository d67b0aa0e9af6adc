"""Refusal to go on from a run that is still alive: its owner removes old checkpoints as it goes."""

from __future__ import annotations

from machine.processes.runs import OVER, processes_of
from machine.typed import again, console_program
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.owner import is_owned, owner_of
from rundir.paths import RunDir


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
