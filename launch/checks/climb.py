"""`airlock check --climb PROFILE`: short runs on more and more examples, then on more ranks.

Each step is the rung `ranks` with settings of its own; the first that fails is named, with the
cause and the command that does exactly that step again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from launch.checks.run_rung import options_of, run_rung
from launch.checks.rungs import rung_called, smaller
from launch.config.job import place_job, resolve_job
from launch.config.request import RUN, Request
from machine.cores.cores import usable_cores
from machine.processes.signals import Interrupted, Signals
from rundir.config import RunConfig
from rundir.errors import ExitCode

TIMEOUT_S = 600.0  # for each step
_EXAMPLES = (2, 100, 1000)
_NUM_STEPS, _SAMPLES_PER_RANK = 3, 2
_HANG_SHARE = 12  # a start and a first step may take six times as long: half of a step's time


@dataclass(frozen=True, slots=True, kw_only=True)
class ClimbStep:
    """One step of the climb; `num_examples` 0 is all."""

    num_examples: int
    num_ranks: int

    def __str__(self) -> str:
        examples = f"{self.num_examples:,} examples" if self.num_examples else "all examples"
        return f"{examples}, {self.num_ranks} rank{'s' if self.num_ranks != 1 else ''}"


def steps_of(config: RunConfig, num_ranks: int) -> Iterator[ClimbStep]:
    """Yield the steps up to `num_ranks` ranks: the examples on one rank, then the ranks on all."""
    most = config.data.max_samples
    for number in _EXAMPLES:
        if not most or number < most:
            yield ClimbStep(num_examples=number, num_ranks=1)
    ranks = 1
    while ranks < num_ranks:
        yield ClimbStep(num_examples=most, num_ranks=ranks)
        ranks *= 2
    yield ClimbStep(num_examples=most, num_ranks=num_ranks)


def climb(
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
    signals = Signals.listening()
    rows: list[dict[str, Any]] = []  # as `--json` prints them
    try:
        for step in todo:
            row = _row(step, request, config, environ, signals, timeout_s or TIMEOUT_S)
            rows.append(row)
            if not as_json:
                console.out(f"{'ok' if row['ok'] else 'FAIL':<5} {row['seconds']:>7.1f} s  {step}")
            if not row["ok"]:
                break
    except Interrupted:
        console.out(f"interrupted in: {step}; nothing is left of it")
        return ExitCode.INTERRUPTED_UNSAVED
    not_reached = [str(step) for step in todo[len(rows) :]]
    is_ok = bool(rows[-1]["ok"])
    if as_json:
        about = {"diagnostic": "climb", "ok": is_ok, "profile": request.profile}
        print(json.dumps(about | {"steps": rows, "not_reached": not_reached}))  # noqa: T201
    else:
        console.out("\n".join(["", *_end_lines(rows, not_reached)]))
    return ExitCode.DONE if is_ok else ExitCode.PREFLIGHT


def _row(
    step: ClimbStep,
    request: Request,
    config: RunConfig,
    environ: Mapping[str, str],
    signals: Signals,
    timeout_s: float,
) -> dict[str, Any]:
    """Try a step: `text` says how it went, `again` is the command for just that step."""
    batch = _SAMPLES_PER_RANK * step.num_ranks
    settings = smaller(config, batch_size=batch, num_steps=_NUM_STEPS)
    settings["data.max_samples"] = str(step.num_examples)
    if config.launch.hang_timeout_s < 0:
        # So that the run itself finds who keeps it waiting, and says so, before its time is up.
        settings["launch.hang_timeout_s"] = f"{max(1.0, timeout_s / _HANG_SHARE):g}"
    again = request.command(RUN, settings, num_gpus=step.num_ranks)
    kept = [typed for typed in request.settings if typed.partition("=")[0].strip() not in settings]
    changed = [f"{key}={value}" for key, value in settings.items()]
    exactly = replace(request, settings=[*kept, *changed], num_gpus=step.num_ranks)
    options = [*options_of(exactly), "--as-given"]
    done = run_rung(rung_called("ranks"), options, environ, signals, timeout_s=timeout_s)
    text = next((row["text"] for row in done.findings), done.line + done.last_words)
    return {
        "step": str(step),
        "ok": done.ok,
        "seconds": round(done.seconds, 1),
        "text": text,
        "do": "" if done.ok else done.do or again,
        "again": again,
        **asdict(step),
    }


def _end_lines(rows: list[dict[str, Any]], not_reached: list[str]) -> Iterator[str]:
    last = rows[-1]
    if last["ok"]:
        yield f"all {len(rows)} steps are climbed, up to {last['step']}"
        return
    yield f"airlock: it stops at {last['step']}: {last['text']}"
    if last["do"] != last["again"]:
        yield f"  → {last['do']}"
    yield f"  → {last['again']}   # exactly that step"
    if not_reached:
        yield f"  not reached: {'; '.join(not_reached)}"
