"""A launcher with all its descendants: their memory, and their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from machine.memory.process_memory import smaps_rollup
from machine.processes.descendants import is_alive


@dataclass(slots=True)
class Memory:
    """Bytes, summed over every process of a tree: proportional set size, and its anonymous part."""

    pss_bytes: int = 0
    anon_bytes: int = 0


class Tree:
    """A launcher started for one measurement; no process of it is left after the block."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self.log = folder / "launcher.log"
        with self.log.open("wb") as log:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill every process, and wait until they are gone."""
        while left := self._processes():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=5)
        self._process.wait()

    def has_ended(self) -> bool:
        """Return whether the launcher itself is gone."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The launcher's exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> float:
        """Wait for the launcher to end; return the seconds it took in all.

        Raises TimeoutExpired.
        """
        self._process.wait(timeout_s)
        return time.monotonic() - self.started

    def pause(self) -> None:
        """Suspend all processes, including those that are started meanwhile."""
        standing: set[psutil.Process] = set()
        while moving := [one for one in self._processes()[::-1] if one not in standing]:
            for process in moving:  # parents first
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
            standing.update(moving)

    def go_on(self) -> None:
        """Resume the suspended processes."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def cpu_s(self) -> float:
        """Return the seconds of processor time that its present processes have had."""
        total_s = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s

    def memory(self) -> Memory:
        """Return the tree's current memory."""
        total = Memory()
        for process in self._processes():
            with contextlib.suppress(OSError, KeyError):  # it ended meanwhile
                fields = smaps_rollup(process.pid)
                total.pss_bytes += fields["Pss"]
                total.anon_bytes += fields["Pss_Anon"]
        return total

    def _processes(self) -> list[psutil.Process]:
        try:
            top = psutil.Process(self._process.pid)
            found = [*top.children(recursive=True), top]
        except psutil.NoSuchProcess:
            return []
        return [one for one in found if is_alive(one)]


class PeakMemory:
    """Samples a tree in a thread; this walks page tables, so never while time is measured."""

    def __init__(self, tree: Tree, every_s: float) -> None:
        self._tree, self._every_s = tree, every_s
        self.peak = Memory()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stop.wait(self._every_s):
            self.add(self._tree.memory())

    def add(self, seen: Memory) -> None:
        """Update the peak with one sample."""
        self.peak.pss_bytes = max(self.peak.pss_bytes, seen.pss_bytes)
        self.peak.anon_bytes = max(self.peak.anon_bytes, seen.anon_bytes)

    def stop(self) -> Memory:
        """Take a last sample, stop, and return the peak."""
        assert self._thread.is_alive(), "sampling has failed"
        self._stop.set()
        self._thread.join()
        self.add(self._tree.memory())
        return self.peak


def kill(pid: int) -> float:
    """Send SIGKILL to one process; return the monotonic time at which it was sent."""
    now = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return now
