"""The processes of runs on this machine, identified independently of their current parents.

Every process of a run has the run's folder in its environment, and its launcher has the run's event
file open. Names prove nothing: anyone's `python train.py` looks like ours.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from machine.processes.descendants import is_alive
from rundir.files.reading import json_object
from rundir.paths import RunDir, runs_folder

_MARK = b"AIRLOCK_RUN_DIR="
_PROC = Path("/proc")
_ROUNDS = 10
OVER = ("done", "failed", "interrupted")  # final phases


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcesses:
    """A run and its processes on this machine. `phase` comes from its status; "" without one."""

    run: RunDir
    phase: str
    launcher: psutil.Process | None
    processes: list[psutil.Process]  # oldest first, without the launcher

    @property
    def called(self) -> str:
        """The run as a word of a command: its id, or its path if it is another clone's."""
        is_own = self.run.path.parent.resolve() == runs_folder().resolve()
        return shlex.quote(self.run.run_id if is_own else str(self.run.path))

    @property
    def is_dead(self) -> bool:
        """True if its launcher has died and left these behind: one that ends records a final phase.

        Ranks started by hand, with the torchrun line of a finished run, have no launcher either;
        nor has a folder that no launcher has ever written to.
        """
        was_cut_off = self.phase not in ("", *OVER) or not self.run.path.exists()
        return self.launcher is None and was_cut_off

    @property
    def how_many(self) -> str:
        """The number of processes, as text."""
        num = len(self.processes)
        return f"{num} process{'es' if num != 1 else ''}"


def all_runs() -> list[RunProcesses]:
    """Return every run of this user with processes here, except this process and its parents."""
    by_folder = _by_folder()
    runs = [_run_with(RunDir(folder), some) for folder, some in sorted(by_folder.items())]
    return [run for run in (*runs, *_plain_runs(by_folder)) if run.processes]


def _plain_runs(known: Container[Path]) -> Iterator[RunProcesses]:
    """Yield plain runs, whose process lacks the run folder's variable: their status names it."""
    for folder in sorted(runs_folder().resolve().glob("2*")):
        run = RunDir(folder)
        if folder in known or (phase := phase_of(run)) in ("", *OVER):
            continue
        if launcher := _launcher(run, []):
            yield RunProcesses(run=run, phase=phase, launcher=launcher, processes=[launcher])


def processes_of(run: RunDir) -> RunProcesses:
    """Return the launcher and the live processes of `run`."""
    return _run_with(run, _by_folder().get(run.path.resolve(), []))


def _by_folder() -> dict[Path, list[psutil.Process]]:
    kin = {process.pid for process in _with_parents(psutil.Process())}
    by_folder: dict[Path, list[psutil.Process]] = {}
    for pid in pids():
        folder = None if pid in kin else run_folder_of(pid)
        if folder is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                by_folder.setdefault(folder, []).append(psutil.Process(pid))
    return by_folder


def _run_with(run: RunDir, processes: list[psutil.Process]) -> RunProcesses:
    alive = sorted(
        (process for process in processes if is_alive(process)), key=psutil.Process.create_time
    )
    return RunProcesses(
        run=run, phase=phase_of(run), launcher=_launcher(run, alive), processes=alive
    )


def status_of(run: RunDir) -> dict[str, Any]:
    """Return the status of `run`; empty if there is none that can be read."""
    return json_object(run.status)


def phase_of(run: RunDir) -> str:
    """Return the phase in the status of `run`; "" if there is none."""
    return str(status_of(run).get("phase", ""))


def run_folder_of(pid: int) -> Path | None:
    """Return the run folder of a process, or None if it has none.

    Only processes of this user and this container are considered.
    """
    try:
        folder = _PROC / str(pid)
        if folder.stat().st_uid != os.getuid() or not _is_in_our_pid_space(folder):
            return None
        words = (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # the process has ended
        return None
    marks = [word for word in words if word.startswith(_MARK)]
    return Path(os.fsdecode(marks[0].removeprefix(_MARK))).resolve() if marks else None


def end(run: RunDir, grace_s: float = 5.0) -> list[psutil.Process]:
    """End every process of `run`: SIGTERM, and after `grace_s` SIGKILL; return the survivors.

    Processes that they start meanwhile are ended as well. psutil guards against a reused pid by
    comparing start times.
    """
    left = processes_of(run).processes
    _signal_all(left, psutil.Process.terminate, grace_s)
    for _ in range(_ROUNDS):
        left = processes_of(run).processes
        if not left:
            break
        _signal_all(left, psutil.Process.kill, grace_s / _ROUNDS)
    return left


def _signal_all(
    processes: list[psutil.Process], send: Callable[[psutil.Process], None], timeout_s: float
) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            send(process)
    psutil.wait_procs(processes, timeout=timeout_s)


def _launcher(run: RunDir, processes: list[psutil.Process]) -> psutil.Process | None:
    """Return the process with the event file of `run` open, or None.

    Candidates are the process named in the status, and the processes of the run with their parents.
    """
    candidates = []
    with contextlib.suppress(KeyError, ValueError, psutil.NoSuchProcess):
        candidates.append(psutil.Process(status_of(run)["launch_pid"]))
    for process in processes:
        candidates += [
            candidate for candidate in _with_parents(process) if candidate not in candidates
        ]
    events = str(RunDir(run.path.resolve()).event_file("launch"))
    return next(
        (candidate for candidate in candidates if events in open_files(candidate.pid)), None
    )


def _with_parents(process: psutil.Process) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        yield process
        yield from process.parents()


def open_files(pid: int) -> set[str]:
    """Return the paths of a process's open files; empty if it may not be inspected."""
    files = set()
    with contextlib.suppress(OSError):
        for link in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                files.add(os.readlink(link).removesuffix(" (deleted)"))  # noqa: PTH115 - not always a path
    return files


def _is_in_our_pid_space(folder: Path) -> bool:
    """Return whether a process is in this process's pid namespace: in others, pids differ."""
    return (folder / "ns/pid").stat().st_ino == (_PROC / "self/ns/pid").stat().st_ino


def pids() -> list[int]:
    """Return the pids of all processes that can be seen from here."""
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
