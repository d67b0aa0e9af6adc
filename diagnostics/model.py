"""`python -m diagnostics.model`: are the model's files intact, does it fit, load, and compute?

First on the meta device, where it takes no memory (the plan of the run); then for real, on one
device, with the code that a rank loads it with.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diagnostics.probes.result import (
    Findings,
    check_device_command,
    install_command,
    peak_memory_bytes,
)
from diagnostics.probes.rung import OwnRun, own_run, rung
from launch.config.request import PLAN, Request
from launch.files.load_mode import choose_loading
from launch.plan.fit import Fit
from launch.plan.planning import plan_of_job
from launch.plan.show import verdict_lines
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.finding import Finding
from rundir.units import GIB, size_text
from train.data.architecture import check_is_causal
from train.data.fits_model import raw_config

_MAX_NAMES = 3  # of tensors, on one line
_ANEW = "fetch the model's files again from their source"


@rung("model")
def main(findings: Findings, request: Request, _timeout_s: float) -> None:
    """Load the model as a rank does, after its plan, and compute; exits with 4 if that fails."""
    with findings.reported("ranks", install_command()), own_run(request) as run:
        with findings.reported("files", _ANEW):
            folder = run.model_folder()
            findings.add(check_files(run, folder))
        with findings.reported("on meta", f"{PLAN} {request.profile}"):
            finding, num_planned = judge_plan(run, request)
            findings.add(finding)
        if not findings.all_ok:  # loading it would only fill the memory
            findings.finish()
        with findings.reported("torch", install_command()):
            import torch  # noqa: F401 - what fails here is torch, not the model
        with findings.reported("load", check_device_command()):
            model, seconds = load(run.config, folder)
            loaded = judge_loaded(model, num_planned, seconds)
            findings.add(loaded)
            findings.add(judge_weights(list(not_finite(model))))
        with findings.reported("forward", check_device_command()):
            findings.add(try_forward(model, run.config))
    findings.finish(loaded.text)


def check_files(run: OwnRun, folder: Path) -> Finding:
    """Report the weight files and how ranks will load them. Raises UserError for damaged ones."""
    check_is_causal(raw_config(folder), folder)
    loading = choose_loading(run.config, folder)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    total = size_text(sum(file.stat().st_size for file in files))
    return Finding(
        check="files",
        ok=True,
        warning=loading.advice or "",
        text=f"{folder.name}: {len(files)} files, {total}; {loading.load} ({loading.reason})",
        figures={"folder": str(folder), "num_files": len(files), "load": loading.load},
    )


def judge_plan(run: OwnRun, request: Request) -> tuple[Finding, int | None]:
    """Return a finding that fails if the plan does not fit, and the parameters of the model.

    A model that cannot be traced is a warning: a run goes on without a plan.
    """
    try:
        plan = plan_of_job(run.job, os.environ, Signals())
    except UserError as error:
        text = "; ".join(str(error.args[0]).splitlines())
        return Finding(check="on meta", ok=True, text="", warning=text, do=error.do), None
    footprint = plan.footprint
    finding = Finding(
        check="on meta",
        ok=plan.verdict is not Fit.DOES_NOT_FIT,
        text=f"{footprint.num_parameters:,} parameters, {footprint.num_trainable:,} of them "
        f"trained; {'; '.join(verdict_lines(plan))}",
        do=f"{request.command(PLAN, {})}   # says what would fit",
        figures={
            "num_parameters": footprint.num_parameters,
            "num_trainable": footprint.num_trainable,
            "peak_bytes": footprint.peak_bytes,
        },
    )
    return finding, footprint.num_parameters


def load(config: RunConfig, folder: Path) -> tuple[Any, float]:
    """Load the model on the first device, with adapters if any; return it and the seconds taken."""
    import torch

    from ranks.group import rank_device
    from train.model.build import add_method, load_architecture, load_model, new_model
    from train.model.new_tokens import grow

    begun, device = time.perf_counter(), rank_device(0)
    if config.launch.load == "random":
        model = new_model(load_architecture(config.model, folder), config, device)
    else:
        model = load_model(config, folder, device)
    model = add_method(grow(model, folder), config.train)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return model, time.perf_counter() - begun


def judge_loaded(model: Any, num_planned: int | None, seconds: float) -> Finding:
    """Return a finding that fails if the model is not the one that was planned for."""
    from train.model.build import num_weights

    device, num = next(model.parameters()).device, num_weights(model)
    held = peak_memory_bytes(device)
    text = f"{num:,} parameters on {device} in {seconds:.1f} s, {held / GIB:.2f} GiB held"
    is_as_planned = num_planned in (None, num)
    if not is_as_planned:
        text += f"; on meta there were {num_planned:,}"
    return Finding(
        check="load",
        ok=is_as_planned,
        text=text,
        do=f"{_ANEW}: config.json and weights are not of one model",
        figures={"num_parameters": num, "seconds": seconds, "held_bytes": held},
    )


def not_finite(model: Any) -> Iterator[str]:
    """Yield the names of parameters and buffers that hold a NaN or an infinity."""
    from itertools import chain

    import torch

    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_floating_point() and tensor.numel():
            least, most = torch.aminmax(tensor.detach())  # either is NaN if anything is
            if not (least.isfinite() and most.isfinite()):
                yield name


def judge_weights(bad: list[str]) -> Finding:
    """Return a finding that fails if any weight is NaN or infinite."""
    more = f" and {len(bad) - _MAX_NAMES} more" if len(bad) > _MAX_NAMES else ""
    text = f"NaN or infinity in {', '.join(bad[:_MAX_NAMES])}{more}" if bad else "all finite"
    do = f"{_ANEW}; was it saved by a training that had diverged?"
    return Finding(check="weights", ok=not bad, text=text, do=do, figures={"not_finite": bad})


def try_forward(model: Any, config: RunConfig) -> Finding:
    """Compute the loss of a few tokens, and check what the trainer assumes of a model.

    Raises UserError for a model that samples cannot be packed for.
    """
    import torch

    from train.model.build import inference
    from train.model.loss import SummedLoss
    from train.step.selftest import trial_batch, tried_of

    head = tried_of(model, config).head
    batch = trial_batch(model)
    with inference(model):
        loss = SummedLoss(model, head=head)(*batch.arguments(next(model.parameters()).device))
    mean = float(loss) / max(1, batch.num_label_tokens)
    return Finding(
        check="forward",
        ok=bool(torch.isfinite(loss)),
        text=f"loss {mean:.3f} on {batch.num_label_tokens} random tokens"
        + ("" if head != "whole" else "; the logits of a whole batch are held"),
        do=check_device_command(),
        figures={"loss": mean, "head": head},
    )


if __name__ == "__main__":
    main(prog_name="diagnostics.model")
