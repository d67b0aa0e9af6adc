"""One run of Airlock for a measurement: started as by a user, followed, and ended in time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.tree import Tree
from machine.gpus.devices import Gpu, installed_gpus, visible_gpus
from rundir.control import ask
from rundir.errors import ExitCode
from rundir.events import Event, RunEvents
from rundir.paths import ROOT, RunDir

Device = Literal["cuda", "cpu"]
Ending = Literal["stop", "kill"]
Figures = dict[str, Any]
_POLL_S = 0.2
_MOST_SHOWN = 4000  # characters of a log
# Of the time of a run, what is left for its end: a run that is asked to stop first saves.
_END_SHARE, _END_MOST_S = 0.2, 60.0


class SkippedError(Exception):
    """A case that cannot be measured here; the text says why."""


class FailedError(Exception):
    """A case that was started but failed; the text ends with its last output."""

    def __init__(self, text: str, exit_code: int | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class OutOfTimeError(FailedError):
    """A run that was not done in time; `done` holds its events until then."""

    def __init__(self, text: str, done: Done) -> None:
        super().__init__(text)
        self.done = done


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folder and the device of the runs. Caches and the gate are the benchmark's own.

    `settings` are given to every run after those of its case (`section.key=value`).
    """

    folder: Path
    device: Device = "cuda"
    settings: tuple[str, ...] = ()

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
                "HF_HUB_OFFLINE": "1",
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
    run: RunDir | None = None

    def of(self, kind: str, name: str) -> list[Event]:
        """Return the events of that kind and name, in the order in which they were read."""
        return [one for one in self.events if (one["kind"], one["name"]) == (kind, name)]

    def losses(self) -> dict[int, float]:
        """Return the loss of each step that was reported."""
        return {one["step"]: one["loss"] for one in self.of("metric", "train")}

    @property
    def first_step_s(self) -> float | None:
        """Seconds from the exec of the command to the end of the first step; None without one."""
        steps = self.of("metric", "train")
        return round(float(steps[0]["mono"]) - self.started, 1) if steps else None


def airlock(*arguments: str) -> list[str]:
    """Return the command that `./start.sh` and `./airlock` run, in this environment."""
    return [sys.executable, "-P", "-m", "launch", *arguments]


class _Run:
    """A run that has been started: its processes, and its events as they come."""

    def __init__(self, tree: Tree, runs: Path, before: Path) -> None:
        self.tree, self._latest, self._before = tree, runs / "latest", before
        self._events: RunEvents | None = None
        self._all: list[Event] = []
        self.run: RunDir | None = None

    def look(self) -> None:
        """Read what is new."""
        found = self._latest.resolve()
        if self._events is None and found != self._before and found.exists():
            self.run = RunDir(found)
            self._events = RunEvents(self.run.events)
        if self._events is not None:
            self._all += self._events.new_events()

    @property
    def num_steps(self) -> int:
        """Steps done so far, those of a run that it resumes included."""
        return max((one["step"] for one in self.done().of("metric", "train")), default=0)

    def done(self) -> Done:
        """Return the events so far, by their time."""
        ordered = sorted(self._all, key=lambda one: one["mono"])
        return Done(started=self.tree.started, events=ordered, run=self.run)


def follow(
    name: str,
    arguments: Sequence[str],
    place: Place,
    *,
    timeout_s: float,
    stop_after: int = 0,
    ending: Ending = "stop",
) -> Done:
    """Run `airlock run ARGUMENTS` to its end and leave nothing of it running.

    With `stop_after` it is ended after that many steps, or after fewer when time is short: asked to
    stop, which saves a checkpoint but exports no model, or killed with all its processes. Raises
    FailedError when it ends otherwise, OutOfTimeError when it takes longer than `timeout_s`.
    """
    runs, work = place.folder / name, place.folder / f"work-{name}"
    work.mkdir(exist_ok=True)
    before = (runs / "latest").resolve()
    soon_s = timeout_s - min(_END_MOST_S, _END_SHARE * timeout_s)
    with Tree(airlock("run", *arguments), place.environment(name), work) as tree:
        run = _Run(tree, runs, before)
        while not tree.has_ended():
            time.sleep(_POLL_S)
            run.look()
            spent_s = time.monotonic() - tree.started
            if spent_s > timeout_s:
                text = f"not done after {timeout_s:.0f} s:\n{last_lines(tree.log)}"
                raise OutOfTimeError(text, run.done())
            least = 1 if spent_s > soon_s else stop_after
            if stop_after and run.num_steps >= least:
                if ending == "kill":
                    return run.done()  # leaving the block kills it
                assert run.run is not None, "it has reported steps"
                ask(run.run, "stop")
        run.look()
        expected = ExitCode.INTERRUPTED_SAVED if stop_after else ExitCode.DONE
        if tree.exit_code != expected:
            text = f"it ended with {tree.exit_code}:\n{last_lines(tree.log)}"
            raise FailedError(text, tree.exit_code)
        return run.done()


def last_lines(log: Path) -> str:
    """Return the end of a failed run's log, as far as it is worth showing."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(line for line in lines if line.strip())[-_MOST_SHOWN:]


def merged(parts: Iterable[Figures]) -> Figures:
    """Return all figures of a case, whose measurement yields them as they come."""
    found: Figures = {}
    for part in parts:
        found |= part
    return found


def prefixed(name: str, parts: Iterable[Figures]) -> Iterator[Figures]:
    """Yield figures under names that begin with `name`."""
    for part in parts:
        yield {f"{name}_{key}": value for key, value in part.items()}
