"""`python -m diagnostics.medium`: does one device train the real model on 100 real examples?

It makes two passes over them in one process, so that the second pass shows whether the
model learns, and a checkpoint is written at the end.
"""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import replace

from diagnostics.probes.result import Findings
from diagnostics.probes.rung import rung
from diagnostics.probes.short_run import ShortRun, judge_end, short_run
from launch.checks.rungs import NUM_EXAMPLES, smaller
from launch.config.job import resolve_job
from launch.config.request import PLAIN, Request
from rundir.checkpoints import complete_checkpoints
from rundir.finding import Finding
from rundir.units import GIB

_BATCH_SIZE = 20
_NUM_PASSES = 2
_ROSE = 1.1  # above the first pass: more than chance explains


@rung("medium", ends=False)
def main(findings: Findings, request: Request, timeout_s: float) -> None:
    """Train on 100 examples on one device; exits with 4 if the run fails or the loss rises."""
    config, _ = resolve_job(request, os.environ)
    size = min(config.train.global_batch_size, _BATCH_SIZE)
    per_pass = math.ceil(NUM_EXAMPLES / size)
    short = smaller(config, batch_size=size, num_steps=_NUM_PASSES * per_pass)
    request = replace(request, num_gpus=None)
    command = request.command(PLAIN, short)
    args = ["--plain", *request.arguments(PLAIN, short)]
    with short_run(args, timeout_s, findings.note_memory) as ran:
        findings.add(judge_end(ran, command))
        if findings.all_ok:
            loss = judge_loss(ran.losses, per_pass)
            findings.add(loss)
            findings.add(judge_checkpoint(ran))
            findings.finish(f"{NUM_EXAMPLES} examples twice, {loss.text}")


def judge_loss(losses: list[float], per_pass: int) -> Finding:
    """Return a finding that fails if the loss rose from the first pass to the second."""
    first, second = statistics.mean(losses[:per_pass]), statistics.mean(losses[per_pass:])
    warning = f"the loss did not fall: {first:.4f} → {second:.4f}" if second >= first else ""
    return Finding(
        check="loss",
        ok=second <= first * _ROSE,
        text=f"loss {first:.4f} → {second:.4f}",
        warning=warning,
        do="--set train.learning_rate=… a tenth of it; or see the data: ./airlock check data"
        if warning
        else "",
        figures={"losses": losses, "first_pass": first, "second_pass": second},
    )


def judge_checkpoint(ran: ShortRun) -> Finding:
    """Return a finding that fails if no checkpoint is complete, with speed and peak memory."""
    assert ran.folder is not None
    whole = complete_checkpoints(ran.folder.checkpoints)
    result = ran.of("mark", "train.result")[-1]
    peak = result["gpu_peak_bytes"]
    gpu = f", GPU {peak / GIB:.1f} GiB at most" if peak else ""
    return Finding(
        check="checkpoint",
        ok=bool(whole),
        text=f"{whole[-1].name}; {result['tokens_per_s']:,.0f} tokens/s{gpu}"
        if whole
        else "there is none that is whole",
        do="df -h . && ./airlock check environment",
        figures={"tokens_per_s": result["tokens_per_s"], "gpu_peak_bytes": peak},
    )


if __name__ == "__main__":
    main(prog_name="diagnostics.medium")
