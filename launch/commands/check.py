"""`airlock check [RUNG]`: climb the ladder, and say what to do at the first rung that fails."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import click
from rich.console import Console

from launch.checks.climb import climb as climb_on
from launch.checks.run_rung import RungResult, alone, options_of, run_rung
from launch.checks.rungs import NAMES, RUNGS, Rung, rung_called
from launch.commands.unknown_words import AnsweringCommand
from launch.config.job import place_job, resolve_job
from launch.config.options import options
from launch.config.request import Request
from machine.processes.output import with_console
from machine.processes.signals import Interrupted, Signals
from rundir.errors import ExitCode, UserError

_ROW = "{:<12} {:<5} {:>8} {:>11} {:>11}  {}"


@click.command(cls=AnsweringCommand)
@click.argument("rung", required=False, type=click.Choice(NAMES))
@options("profile", "num_gpus", "data", "set")
@click.option(
    "--climb",
    metavar="PROFILE",
    help="Instead: short runs of PROFILE on 2, 100, 1,000 and all examples, then on 2, 4, 8 ranks.",
)
@click.option("--all", "goes_on", is_flag=True, help="Go on after a rung that failed.")
@click.option(
    "--timeout-s", type=click.FloatRange(min=1), help="Longest time for a rung, or a part of it."
)
@options("json")
@with_console
def check(
    console: Console,
    rung: str | None,
    *,
    climb: str | None,
    goes_on: bool,
    as_json: bool,
    timeout_s: float | None,
    **options: Any,
) -> ExitCode:
    """Climb the ladder: from the machine to training on all ranks, rung by rung.

    Stops at the first rung that fails, with what to do, and ends with 4. With RUNG, that one alone.
    """
    environ, request = os.environ, Request(**options)
    if climb is not None:
        if rung is not None:
            raise click.UsageError(f"--climb is a check of its own: leave out {rung}")
        climber = replace(request, profile=climb)
        return climb_on(climber, console, environ, as_json=as_json, timeout_s=timeout_s)
    lacks_gpu = _lacks_gpu(request, environ)
    signals = Signals.listening()
    rungs = RUNGS if rung is None else (rung_called(rung),)
    show = _Table(console, request) if not as_json else None
    done: list[RungResult] = []
    try:
        for later in rungs:
            if rung is None and lacks_gpu and later.needs_device:  # `environment` has said so, once
                continue
            with nullcontext() if show is None else show.waiting(later):
                args = options_of(request)
                done.append(run_rung(later, args, environ, signals, timeout_s=timeout_s))
            if show is not None:
                show.row(done[-1])
            if not done[-1].ok and not goes_on:
                break
    except Interrupted:
        console.out(f"interrupted in {later.name}; nothing is left of it")
        return ExitCode.INTERRUPTED_UNSAVED
    not_reached = [later for later in rungs if later not in [climbed.rung for climbed in done]]
    is_green = all(later.ok for later in done) and not not_reached
    if show is None:
        print(json.dumps(_summary(done, not_reached, request)))  # noqa: T201
    else:
        show.end(done, not_reached, lacks_gpu=lacks_gpu)
    return ExitCode.DONE if is_green else ExitCode.PREFLIGHT


def _lacks_gpu(request: Request, environ: Mapping[str, str]) -> bool:
    """Return whether the profile needs a GPU that is not there. Raises UserError if it is wrong."""
    config, sources = resolve_job(request, environ)
    try:
        place_job(request, config, sources, environ)
    except UserError as error:
        return error.code is ExitCode.PREFLIGHT
    return False


class _Table:
    """A table: a line for each finished rung; below a failed one, findings and what to do."""

    def __init__(self, console: Console, request: Request) -> None:
        self._console, self._request = console, request
        self._console.out(_ROW.format("rung", "", "time", "peak RSS", "VmPeak", ""))

    def waiting(self, rung: Rung) -> AbstractContextManager[Any]:
        """Return a context that shows a spinner on a terminal."""
        if not self._console.is_terminal:
            return nullcontext()
        return self._console.status(f"{rung.name}: {rung.asks}")

    def row(self, done: RungResult) -> None:
        """Print the rung's line, and below it warnings and failures."""
        verdict, peaks = "ok" if done.ok else "FAIL", done.peaks
        seconds = f"{done.seconds:.1f} s"
        red = [finding["check"] for finding in done.findings if not finding["ok"]]
        line = ", ".join(red) or done.line
        self._console.out(
            _ROW.format(done.rung.name, verdict, seconds, peaks.rss_text, peaks.vm_text, line)
        )
        for finding in done.findings:
            if not finding["ok"]:
                self._console.out(f"  {finding['check']}: {finding['text']}\n    → {finding['do']}")
            elif finding["warning"]:
                more = f"  → {finding['do']}" if finding["do"] else ""
                self._console.out(f"  warning: {finding['check']}: {finding['warning']}{more}")
        if done.last_words:
            self._console.out(done.last_words.lstrip("\n"))

    def end(
        self, done: Sequence[RungResult], not_reached: Sequence[Rung], *, lacks_gpu: bool
    ) -> None:
        """Print the overall result, and what to type next."""
        red = [climbed for climbed in done if not climbed.ok]
        if not red and not not_reached:
            num = f"all {len(done)} rungs are" if len(done) > 1 else f"{done[0].rung.name} is"
            self._console.out(f"\n{num} green")
            return
        texts = [f"{', '.join(climbed.rung.name for climbed in red)} failed"] if red else []
        if not_reached:
            # After one that passed, only the missing GPU can have kept the rest from running.
            why = "not run, for want of a GPU" if lacks_gpu and done[-1].ok else "not reached"
            texts.append(f"{why}: {', '.join(climbed.name for climbed in not_reached)}")
        lines = ["", f"airlock: {'; '.join(texts)}"]
        if red:
            lines += [f"  → {red[0].do}"] if red[0].do else []
            lines.append(f"  → {alone(red[0].rung, self._request)}   # again")
        self._console.out("\n".join(lines))


def _summary(done: Sequence[RungResult], not_reached: Sequence[Rung], request: Request) -> Any:
    return {
        "diagnostic": "ladder",
        "ok": all(climbed.ok for climbed in done),
        "profile": request.profile,
        "rungs": [
            {
                "rung": climbed.rung.name,
                "ok": climbed.ok,
                "line": climbed.line,
                "do": "" if climbed.ok else climbed.do or alone(climbed.rung, request),
                "seconds": round(climbed.seconds, 3),
                "peak_rss_bytes": climbed.peaks.rss_bytes,
                "vm_peak_bytes": climbed.peaks.vm_bytes,
                "findings": climbed.findings,
                "last_words": climbed.last_words,
            }
            for climbed in done
        ],
        "not_reached": [climbed.name for climbed in not_reached],
    }
