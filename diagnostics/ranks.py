"""`python -m diagnostics.ranks`: do all ranks start, pass the gate, and train a few steps together?

They are started by the launcher itself, with everything that a full run has except its length.
"""

from __future__ import annotations

import math
import os

import click

from diagnostics.probes.result import Findings
from diagnostics.probes.rung import rung
from diagnostics.probes.short_run import ShortRun, judge_end, short_run
from launch.checks.rungs import smaller
from launch.config.job import place_job, resolve_job
from launch.config.request import RUN, Request
from rundir.errors import UserError
from rundir.finding import Finding
from rundir.units import size_text

_NUM_STEPS = 4
_SAMPLES_PER_RANK = 4  # per step


@click.option(
    "--as-given", is_flag=True, help="Train as many steps as the settings say; judge the end alone."
)
@rung("ranks", ends=False)
def main(findings: Findings, request: Request, timeout_s: float, *, as_given: bool) -> None:
    """Start all ranks and train four steps; exits with 4 if one fails, and names it."""
    config, sources = resolve_job(request, os.environ)
    try:
        num_ranks = place_job(request, config, sources, os.environ).num_ranks
    except UserError as error:
        findings.add(Finding(check="ranks", ok=False, text=str(error.args[0]), do=error.do))
        findings.finish()
    batch = _SAMPLES_PER_RANK * num_ranks
    short = {} if as_given else smaller(config, batch_size=batch, num_steps=_NUM_STEPS)
    options = {"num_gpus": num_ranks} if as_given else {}
    command, args = request.command(RUN, short, **options), request.arguments(RUN, short, **options)
    with short_run(args, timeout_s, findings.note_memory) as ran:
        findings.add(judge_end(ran, command))
        if findings.all_ok and not as_given:
            findings.add(judge_start(ran, config.launch.start))
            findings.add(judge_ranks(ran, num_ranks))
            findings.add(judge_losses(ran))
    findings.finish(f"{num_ranks} ranks, {len(ran.losses)} steps, {_losses(ran)}")


def judge_start(ran: ShortRun, wanted: str) -> Finding:
    """Report how the ranks were started; warn if it was not as configured."""
    mark = ran.of("mark", "start")[-1]
    begun = ran.events[0]["mono"]
    seconds = float(ran.of("mark", "train.plan")[-1]["mono"]) - float(begun)
    is_other = mark["start"] != wanted
    return Finding(
        check="start",
        ok=True,
        text=f"{mark['start']}, {seconds:.1f} s until training",
        warning=f"it was to be {wanted}: {mark['reason']}" if is_other else "",
        do="docs/how-the-start-works.md" if is_other else "",
        figures={"start": str(mark["start"]), "seconds": seconds},
    )


def judge_ranks(ran: ShortRun, num_ranks: int) -> Finding:
    """Return a finding that fails if ranks are missing; it reports the largest rank's memory."""
    marks = [mark for mark in ran.of("mark", "mem.post_model") if mark["rank"] is not None]
    there = len({mark["rank"] for mark in marks})
    most = max((int(mark["pss_anon_bytes"]) for mark in marks), default=0)
    return Finding(
        check="ranks",
        ok=there == num_ranks,
        text=f"{there} of {num_ranks} took part, each with up to {size_text(most)} of its own",
        do="./airlock check collectives",
        figures={"num_ranks": there, "pss_anon_bytes": most},
    )


def judge_losses(ran: ShortRun) -> Finding:
    """Return a finding that fails unless every step was trained, with a finite loss."""
    losses = ran.losses
    is_right = len(losses) == _NUM_STEPS and all(map(math.isfinite, losses))
    return Finding(
        check="steps",
        ok=is_right,
        text=_losses(ran),
        do="./airlock check medium",
        figures={"losses": losses},
    )


def _losses(ran: ShortRun) -> str:
    return f"loss {' '.join(f'{loss:.4f}' for loss in ran.losses)}"


if __name__ == "__main__":
    main(prog_name="diagnostics.ranks")
