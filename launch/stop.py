"""`airlock ps` and `airlock stop RUN`: what is running, and how exactly one run is ended."""

from __future__ import annotations

import contextlib
import time

import psutil
from rich.console import Console

from launch import run_processes
from launch.console import clock
from launch.run_processes import RunProcesses, all_runs, processes_of
from rundir import control
from rundir.config import LaunchConfig
from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, find_run, runs_folder
from rundir.status import read_status

_LONGEST_COMMAND = 100  # characters of a line of `ps`
_OVER = ("done", "failed", "interrupted")
_BEYOND_S = 60.0  # after the time that ranks have to save: the launcher has to end them and report


def show(console: Console) -> None:
    """Print every run with processes on this machine: launcher, phase, and each process."""
    found = all_runs()
    if not found:
        console.out("no run of yours has processes on this machine", highlight=False)
    for one in found:
        console.out("\n".join(lines(one)), highlight=False)


def lines(found: RunProcesses) -> list[str]:
    """One run and its processes, a line each."""
    who = f"launcher {found.launcher.pid}" if found.launcher else "its launcher is dead"
    num = len(found.processes)
    processes = f"{num} process{'es' if num > 1 else ''}"
    head = f"{found.run.run_id}  {_phase(found.run)}, {who}, {processes}"
    return [head, *(f"  {line}" for line in map(describe, found.processes))]


def describe(process: psutil.Process) -> str:
    """A process in a line: pid, age, command."""
    try:
        age = clock(max(0.0, time.time() - process.create_time()))
        command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"pid {process.pid}  ended meanwhile"
    return f"pid {process.pid}  {age}  {command[:_LONGEST_COMMAND]}"


def stop(name: str, console: Console) -> None:
    """End one run: a live one saves and ends, of a dead one the processes are ended.

    Raises UserError when there is no such run, it is over, or it does not end in time.
    """
    run = _find(name)
    found = processes_of(run)
    if found.launcher is not None:
        _stop_live(found, found.launcher, console)
    elif found.processes:
        end_leftovers(found, console)
    elif _phase(run) in _OVER:
        raise UserError(f"run {run.run_id} is over: {_phase(run)}", do="./airlock ps")
    else:  # on another machine, if at all
        control.ask(run, "stop")
        console.out(f"{run.run_id} has no process here; it is asked through its folder to stop")


def end_leftovers(found: RunProcesses, console: Console) -> None:
    """End what a dead run has left. Raises UserError when something lives on."""
    left = run_processes.end(found.run)
    if left:
        raise UserError(
            f"of run {found.run.run_id} these cannot be killed: {', '.join(map(describe, left))}",
            do="they wait in the kernel, for a driver or a disk: `sudo dmesg | tail`, or reboot",
            code=ExitCode.PREFLIGHT,
        )
    console.out(f"{found.run.run_id}: ended {len(found.processes)} processes that were left over")


def _stop_live(found: RunProcesses, launcher: psutil.Process, console: Console) -> None:
    """Have the launcher stop its run, as Ctrl-C would, and wait for it."""
    run = found.run
    if _phase(run) != "stopping":  # a second signal would end it before it has saved
        with contextlib.suppress(psutil.NoSuchProcess):
            launcher.terminate()
    console.out(f"{run.run_id}: asked to save and end; Ctrl-C here does not change that")
    patience_s = _stop_timeout_s(run) + _BEYOND_S
    try:
        launcher.wait(timeout=patience_s)
    except psutil.TimeoutExpired as error:
        raise UserError(
            f"run {run.run_id} has not ended within {patience_s:.0f} s",
            do=f"kill -KILL {launcher.pid}   # ends it at once, and all its processes with it",
            code=ExitCode.RANK_FAILED,
        ) from error
    console.out(f"{run.run_id}: {_phase(run)}")


def _find(name: str) -> RunDir:
    """The run called `name`; one whose folder is gone is found by its processes."""
    try:
        return find_run(name)
    except ValueError as error:
        for one in all_runs():
            if name in (one.run.run_id, str(one.run.path)):
                return one.run
        raise UserError(str(error), do=f"./airlock ps, or ls {runs_folder()}") from error


def _phase(run: RunDir) -> str:
    try:
        return str(read_status(run)["phase"])
    except (OSError, ValueError, KeyError):
        return "unknown"


def _stop_timeout_s(run: RunDir) -> float:
    try:
        return read_config(run.config).launch.stop_timeout_s
    except (OSError, ValueError):
        return LaunchConfig().stop_timeout_s
