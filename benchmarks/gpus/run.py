"""One run of Airlock for a measurement: started as by a user, followed, and ended in time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.training import ROOT
from benchmarks.tree import Tree
from launch.host.devices import Gpu, installed_gpus, visible_gpus
from launch.host.nvml import driver_state
from rundir.control import ask
from rundir.events import Event, read_events
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir

Device = Literal["cuda", "cpu"]
_POLL_S, _SAMPLE_S = 0.2, 0.05
_MOST_SHOWN = 2000  # characters of a log


class SkippedError(Exception):
    """A case that cannot be measured here; the text says why."""


class FailedError(Exception):
    """A case that was started but failed; the text ends with its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folder and the device of the runs. Caches and the gate are the benchmark's own."""

    folder: Path
    device: Device = "cuda"

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a case, whose runs go to a folder of that name."""
        gate = self.folder / "gate"
        gate.mkdir(mode=0o700, exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRLOCK_", "RUN_"))}
        hidden = {} if self.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        return (
            kept
            | hidden
            | {
                "PYTHONPATH": str(ROOT),
                "AIRLOCK_RUNS_DIR": str(self.folder / name),
                "AIRLOCK_CACHE_DIR": str(self.folder / "cache"),
                "AIRLOCK_GATE_DIR": str(gate),
            }
        )

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that a single rank gets; None on CPU and if there is none."""
        found = visible_gpus(installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        return found[0] if found and self.device == "cuda" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A run that ended as expected. `started` is the monotonic time of its exec."""

    started: float
    events: Sequence[Event]

    def of(self, kind: str, name: str) -> list[Event]:
        """Return the events of that kind and name, in the order in which they were read."""
        return [one for one in self.events if (one["kind"], one["name"]) == (kind, name)]


def airlock(*arguments: str) -> list[str]:
    """Return the command that `./start.sh` and `./airlock` run, in this environment."""
    return [sys.executable, "-P", "-m", "launch", *arguments]


def follow(
    name: str, arguments: Sequence[str], place: Place, *, timeout_s: float, stop_after: int = 0
) -> Done:
    """Run `airlock run ARGUMENTS` to its end and leave nothing of it running.

    With `stop_after` it is asked to stop after that many steps, which saves a checkpoint but
    exports no model. Raises FailedError when it ends otherwise, or takes longer than `timeout_s`.
    """
    folder = place.folder / f"work-{name}"
    folder.mkdir()
    latest = RunDir(place.folder / name / "latest")
    command = airlock("run", *arguments)
    with Tree(command, place.environment(name), folder) as tree:
        while not tree.has_ended():
            if time.monotonic() - tree.started > timeout_s:
                raise FailedError(f"not done after {timeout_s:.0f} s:\n{last_lines(tree.log)}")
            time.sleep(_POLL_S)
            if stop_after and _num_steps(read_events(latest.events)) >= stop_after:
                ask(latest, "stop")
        expected = ExitCode.INTERRUPTED_SAVED if stop_after else ExitCode.DONE
        if tree.exit_code != expected:
            raise FailedError(f"it ended with {tree.exit_code}:\n{last_lines(tree.log)}")
        return Done(started=tree.started, events=read_events(latest.events))


def _num_steps(events: Sequence[Event]) -> int:
    steps = [one["step"] for one in events if (one["kind"], one["name"]) == ("metric", "train")]
    return max(steps, default=0)


def last_lines(log: Path) -> str:
    """Return the end of a failed run's log, as far as it is worth showing."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line for line in lines if line.strip())[-_MOST_SHOWN:]


class GpuMemory:
    """The peak memory in use on a GPU within the block, by anyone, above the level before."""

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu, self._stop = gpu, threading.Event()
        self._before = self._most = self._used()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> GpuMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def peak_bytes(self) -> int | None:
        """The difference; None if there is no GPU, or its driver has not responded."""
        if self._before is None or self._most is None:
            return None
        return self._most - self._before

    def _watch(self) -> None:
        while self._most is not None and not self._stop.wait(_SAMPLE_S):
            self._most = max(self._most, self._used() or 0)

    def _used(self) -> int | None:
        state = driver_state() if self._gpu is not None else None
        return (
            None if state is None or self._gpu is None else state.gpus[self._gpu.index].used_bytes
        )
