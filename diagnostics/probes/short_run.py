"""A short run of the program itself, watched from outside, for the rungs `medium` and `ranks`.

It is started by the command that a user types, in a temporary run folder that is deleted
afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from launch.checks.run_rung import SHORT_RUNS, how_it_ended, last_words, quoted
from machine.processes import children
from machine.processes.children import python_path
from rundir.events import Event, read_events
from rundir.finding import Finding
from rundir.paths import RunDir, runs_folder

_POLL_S = 0.1
_STACKS_S = 1.0  # for ranks to write them
_SAYS, _FAILED = "airlock: ", "airlock: the run failed"
_MAX_LINES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """A run that has ended, or was ended after a timeout. `folder` is None if it made none."""

    code: int
    output: str
    folder: RunDir | None
    events: Sequence[Event]
    hung: str = ""  # what it was doing then

    def of(self, kind: str, name: str) -> list[Event]:
        """Return the events of that kind and name."""
        return [event for event in self.events if (event["kind"], event["name"]) == (kind, name)]

    @property
    def losses(self) -> list[float]:
        """The loss of each step that was trained."""
        return [float(event["loss"]) for event in self.of("metric", "train")]


@contextmanager
def short_run(
    args: Sequence[str], timeout_s: float, show_progress: Callable[[], None]
) -> Iterator[ShortRun]:
    """Run `airlock run ARGS…` to its end, for `timeout_s` at most.

    Its run folder exists inside the block.
    """
    parent = runs_folder()
    parent.mkdir(parents=True, exist_ok=True)
    # On the disk of the runs, because checkpoints may be large.
    prefix = f"{SHORT_RUNS}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as own:
        yield _run(args, timeout_s, show_progress, Path(own))


def _run(
    args: Sequence[str], timeout_s: float, show_progress: Callable[[], None], own: Path
) -> ShortRun:
    env = _environment(os.environ) | {"AIRLOCK_RUNS_DIR": str(own)}
    log, hung = own / "output.log", ""
    with log.open("wb") as output:
        child = children.start("launch", "run", *args, env=env, output=output)
    deadline = time.monotonic() + timeout_s
    try:
        while child.poll() is None and not hung:
            show_progress()
            if time.monotonic() > deadline:
                hung = _where(_folder(own), timeout_s)
            time.sleep(_POLL_S)
    finally:
        if child.poll() is None:
            children.end(child)
    folder = _folder(own)
    return ShortRun(
        code=child.returncode,
        output=log.read_text(encoding="utf-8", errors="replace"),
        folder=folder,
        events=[] if folder is None else read_events(folder.events),
        hung=hung,
    )


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the rung's environment without the variables that request rungs (RUN_…) in a run."""
    env = {name: value for name, value in environ.items() if not name.startswith("RUN_")}
    return env | {"PYTHONPATH": python_path(environ)}


def _folder(own: Path) -> RunDir | None:
    latest = own / "latest"
    return RunDir(latest.resolve()) if latest.exists() else None


def _where(folder: RunDir | None, timeout_s: float) -> str:
    """Name the rank that fell silent first, with its stacks."""
    text = f"it was not done after {timeout_s:g} s"
    if folder is None:
        return text
    last = {
        event["rank"]: event for event in read_events(folder.events) if event["rank"] is not None
    }
    stopped = []
    for rank, event in last.items():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if psutil.Process(event["pid"]).status() == psutil.STATUS_STOPPED:
                stopped.append(rank)
            os.kill(event["pid"], signal.SIGUSR2)
    time.sleep(_STACKS_S)
    if stopped:
        return f"{text}: rank {', '.join(map(str, sorted(stopped)))} is stopped by a signal"
    if not last:
        return f"{text}: no rank has started"
    rank = min(last, key=lambda number: float(last[number]["mono"]))
    attempt = int(last[rank]["attempt"])
    log = folder.rank_log(rank, attempt)
    last_lines = (
        last_words(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else []
    )
    return f"{text}: rank {rank} was the first to fall silent{quoted(last_lines)}"


def judge_end(ran: ShortRun, do: str) -> Finding:
    """Return a finding that fails unless the run ended well; it quotes the run's final message."""
    if ran.code == 0:
        return Finding(check="run", ok=True, text=f"{len(ran.losses)} steps, to the end")
    if ran.hung:
        return Finding(check="run", ok=False, text=ran.hung, do=do)
    message, advice = _final_message(ran.output)
    return Finding(
        check="run", ok=False, text=message or f"it {how_it_ended(ran.code)}", do=advice or do
    )


def _final_message(output: str) -> tuple[str, str]:
    """Return a run's final message, and the command it advised."""
    lines = [line for line in output.splitlines() if line.strip()]
    own_lines = [number for number, line in enumerate(lines) if line.startswith(_SAYS)]
    failed = [number for number in own_lines if lines[number].startswith(_FAILED)]
    if not own_lines:
        return "", ""
    at = (failed or own_lines)[-1]
    text, below = lines[at].removeprefix(_SAYS), lines[at + 1 :]
    arrows = [number for number, line in enumerate(below) if line.lstrip().startswith("→ ")]
    if failed or not arrows:  # advice on resuming is useless here: this run folder is deleted
        return text + quoted(below[-_MAX_LINES:]), ""
    advice = below[arrows[0]].lstrip().removeprefix("→ ")
    return text + quoted(below[: arrows[0]][-_MAX_LINES:]), advice
