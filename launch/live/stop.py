"""`airlock ps` and `airlock stop RUN`: list the running runs, and end exactly one."""

from __future__ import annotations

import contextlib
import time

import psutil
from rich.console import Console

from launch.live.live_run import run_called
from launch.live.roles import roles_of
from machine.processes import runs as run_processes
from machine.processes.descendants import is_alive
from machine.processes.runs import OVER, RunProcesses, all_runs, phase_of, processes_of, status_of
from machine.typed import console_program, ls_runs
from rundir import control
from rundir.config import LaunchConfig
from rundir.config_file import read_config
from rundir.errors import ExitCode, UserError
from rundir.owner import is_owned, owner_of
from rundir.paths import RunDir
from rundir.units import clock_text

_LONGEST_COMMAND = 100  # characters of a command that `ps` shows
_POLL_S = 0.1
_BEYOND_S = 60.0  # after the ranks' time to save, for the launcher to end them and report


def show(console: Console) -> None:
    """Print every run with processes on this machine: launcher, phase, and each process."""
    runs = all_runs()
    if not runs:
        console.out("no run of yours has processes on this machine")
    for processes in runs:
        console.out("\n".join(lines(processes)))


def lines(processes: RunProcesses) -> list[str]:
    """Return lines for a run and each of its processes."""
    who = "its launcher is dead" if processes.is_dead else "without a launcher"
    if processes.launcher:
        who = f"launcher {processes.launcher.pid}"
    head = f"{processes.called}  {processes.phase or 'unknown'}, {who}, {processes.how_many}"
    roles = roles_of(processes)
    if processes.launcher and (waiting := status_of(processes.run).get("waiting")):
        head += f"\n  {waiting}"
    return [
        head,
        *(f"  {describe(process, roles.get(process.pid, ''))}" for process in processes.processes),
    ]


def describe(process: psutil.Process, role: str = "") -> str:
    """Return a line on a process: pid, age, and its role in the run, or its command."""
    try:
        age = clock_text(max(0.0, time.time() - process.create_time()))
        command = role or " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"pid {process.pid}  ended meanwhile"
    return f"pid {process.pid}  {age}  {command[:_LONGEST_COMMAND]}"


def stop(name: str | None, console: Console) -> None:
    """End one run: a live run saves and ends; the leftover processes of a dead run are ended.

    Raises UserError if there is no such run, none is named, it is over, or does not end in time.
    """
    if name is None:
        raise _none_named()
    run = _run_or_leftovers(name)
    processes = processes_of(run)
    if processes.launcher is not None:
        _stop_live(processes, processes.launcher, console)
    elif processes.processes:
        end_leftovers(processes, console)
    elif processes.phase in OVER:
        raise UserError(
            f"run {run.run_id} is over: {processes.phase}",
            do=f"{console_program()} ps   # shows what is going on",
        )
    elif owner_of(run) is not None and not is_owned(run):
        raise UserError(
            f"run {run.run_id} is dead: its launcher has ended without a word ({owner_of(run)}), "
            "and nothing of it is left here",
            do=f"{console_program()} doctor {run.run_id}",
        )
    else:  # on another machine, if at all
        try:
            control.ask(run, "stop")
        except OSError as error:
            raise UserError(
                f"{run.control} cannot be written: {error.strerror}",
                do=f"{console_program()} stop {run.run_id}   # once that is mended",
            ) from error
        console.out(f"{run.run_id} has no process here; it is asked through its folder to stop")


def _none_named() -> UserError:
    """Return the error that names the runs that could be meant."""
    runs = all_runs()
    if not runs:
        return UserError(
            "name the run to end; none of yours has processes on this machine",
            do=f"{console_program()} stop RUN   # one on another machine: {ls_runs()}",
        )
    named = "; ".join(lines(processes)[0] for processes in runs)
    each = [f"{console_program()} stop {processes.called}" for processes in runs]
    return UserError(f"name the run to end: {named}", do="\n  → ".join(each))


def end_leftovers(processes: RunProcesses, console: Console) -> None:
    """End the leftover processes of a dead run. Raises UserError if any survives."""
    left = run_processes.end(processes.run)
    if left:
        raise UserError(
            f"of run {processes.run.run_id} these cannot be killed: "
            f"{', '.join(map(describe, left))}",
            do="they wait in the kernel, for a driver or a disk: `sudo dmesg | tail`, or reboot",
            code=ExitCode.PREFLIGHT,
        )
    console.out(f"{processes.run.run_id}: ended {processes.how_many} left over")


def _stop_live(processes: RunProcesses, launcher: psutil.Process, console: Console) -> None:
    """Ask the launcher to stop its run, as Ctrl-C would, and wait for it to end."""
    run = processes.run
    is_asked = processes.phase == "stopping" or control.is_asked(run, "stop")
    if not is_asked:  # a second signal would end it before it has saved
        with contextlib.suppress(OSError):  # on a full disk it counts as preempted
            control.note_stop_by_hand(run)
        with contextlib.suppress(psutil.NoSuchProcess):
            launcher.terminate()
    console.out(f"{run.run_id}: asked to save and end; Ctrl-C here does not change that")
    timeout_s = _stop_timeout_s(run) + _BEYOND_S
    deadline = time.monotonic() + timeout_s
    while is_alive(launcher):  # a zombie counts as ended
        if time.monotonic() > deadline:
            raise UserError(
                f"run {run.run_id} has not ended within {timeout_s:.0f} s",
                do=f"kill -KILL {launcher.pid}   # ends it at once, and all its processes with it",
                code=ExitCode.RANK_FAILED,
            )
        time.sleep(_POLL_S)
    console.out(f"{run.run_id}: {phase_of(run)}")


def _run_or_leftovers(name: str) -> RunDir:
    """Return the run called `name`; one whose folder is gone is found by its processes.

    Raises UserError if there is none.
    """
    try:
        return run_called(name)
    except UserError:
        for run in all_runs():
            if name in (run.run.run_id, str(run.run.path)):
                return run.run
        raise


def _stop_timeout_s(run: RunDir) -> float:
    try:
        return read_config(run.config).launch.stop_timeout_s
    except (OSError, ValueError):
        return LaunchConfig().stop_timeout_s
