"""`airlock check --climb PROFILE`: short runs on more and more examples, then on more ranks.

Each step is a real run of the program, in a folder that is removed afterwards; the first that
fails is named, with the cause and the command that does exactly that step again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from launch.checks.trial import judge_end, smaller, trial
from launch.config.job import place_job, resolve_job
from launch.config.request import RUN, Request
from machine.cores.cores import usable_cores
from machine.processes.signals import Interrupted, Signals
from rundir.config import RunConfig
from rundir.exit_codes import ExitCode

TIMEOUT_S = 600.0  # for each step
_EXAMPLES = (2, 100, 1000)
_NUM_STEPS, _SAMPLES_PER_RANK = 3, 2
_HANG_SHARE = 12  # a start and a first step may take six times as long: half of a step's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the climb; `num_examples` 0 is all."""

    num_examples: int
    num_ranks: int

    def __str__(self) -> str:
        examples = f"{self.num_examples:,} examples" if self.num_examples else "all examples"
        return f"{examples}, {self.num_ranks} rank{'s' if self.num_ranks != 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step that was tried: `text` says how it went, `again` is the command for just that step."""

    step: Step
    ok: bool
    seconds: float
    text: str
    do: str
    again: str

    def as_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        fields = asdict(self) | {"step": str(self.step), **asdict(self.step)}
        return fields | {"seconds": round(self.seconds, 1), "do": "" if self.ok else self.do}


def steps_of(config: RunConfig, num_ranks: int) -> Iterator[Step]:
    """Yield the steps up to `num_ranks` ranks: the examples on one rank, then the ranks on all."""
    most = config.data.max_samples
    for number in _EXAMPLES:
        if not most or number < most:
            yield Step(num_examples=number, num_ranks=1)
    ranks = 1
    while ranks < num_ranks:
        yield Step(num_examples=most, num_ranks=ranks)
        ranks *= 2
    yield Step(num_examples=most, num_ranks=num_ranks)


def climb_profile(
    request: Request,
    console: Console,
    environ: Mapping[str, str],
    *,
    as_json: bool,
    timeout_s: float | None,
) -> ExitCode:
    """Climb until a step fails; return PREFLIGHT if one has. Raises UserError for what is typed."""
    config, sources = resolve_job(request, environ)
    placement = place_job(request, config, sources, environ)
    num_ranks = placement.num_ranks
    if placement.device == "cpu" and request.num_gpus is None:
        num_ranks = min(num_ranks, usable_cores().number)
    todo = list(steps_of(config, num_ranks))
    signals = Signals()
    signals.listen()
    done: list[Done] = []
    try:
        for step in todo:
            climbed = _climbed(step, request, config, signals, timeout_s or TIMEOUT_S)
            done.append(climbed)
            if not as_json:
                _say(
                    console,
                    f"{'ok' if climbed.ok else 'FAIL':<5} {climbed.seconds:>7.1f} s  {step}",
                )
            if not climbed.ok:
                break
    except Interrupted:
        _say(console, f"interrupted in: {step}; nothing is left of it")
        return ExitCode.INTERRUPTED_UNSAVED
    not_reached = [str(step) for step in todo[len(done) :]]
    if as_json:
        print(json.dumps(_summary(request, done, not_reached)))  # noqa: T201
    else:
        _say(console, "\n".join(_end_lines(done, not_reached)))
    return ExitCode.DONE if done[-1].ok else ExitCode.PREFLIGHT


def _climbed(
    step: Step, request: Request, config: RunConfig, signals: Signals, timeout_s: float
) -> Done:
    def look() -> None:
        if signals.stop_asked:
            raise Interrupted

    batch = _SAMPLES_PER_RANK * step.num_ranks
    settings = smaller(config, batch_size=batch, num_steps=_NUM_STEPS)
    settings["data.max_samples"] = str(step.num_examples)
    if config.launch.hang_timeout_s < 0:
        # So that the run itself finds who keeps it waiting, and says so, before its time is up.
        settings["launch.hang_timeout_s"] = f"{max(1.0, timeout_s / _HANG_SHARE):g}"
    again = request.command(RUN, settings, num_gpus=step.num_ranks)
    args = request.arguments(RUN, settings, num_gpus=step.num_ranks)
    begun = time.monotonic()
    with trial("launch", ["run", *args], timeout_s, look) as ran:
        finding = judge_end(ran, again)
    seconds = time.monotonic() - begun
    return Done(
        step=step, ok=finding.ok, seconds=seconds, text=finding.text, do=finding.do, again=again
    )


def _end_lines(done: list[Done], not_reached: list[str]) -> list[str]:
    last = done[-1]
    if last.ok:
        return ["", f"all {len(done)} steps are climbed, up to {last.step}"]
    lines = ["", f"airlock: it stops at {last.step}: {last.text}"]
    if last.do != last.again:
        lines.append(f"  → {last.do}")
    lines.append(f"  → {last.again}   # exactly that step")
    if not_reached:
        lines.append(f"  not reached: {'; '.join(not_reached)}")
    return lines


def _summary(request: Request, done: list[Done], not_reached: list[str]) -> dict[str, Any]:
    return {
        "diagnostic": "climb",
        "ok": done[-1].ok,
        "profile": request.profile,
        "steps": [step.as_json() for step in done],
        "not_reached": not_reached,
    }


def _say(console: Console, text: str) -> None:
    console.out(text, highlight=False)
