"""`python -m diagnostics.single_gpu`: does one device train a small model as a rank would?

The model is a miniature of the profile's, with random weights: it is created, saved, loaded and
given adapters by the code that a rank uses, then trained for a few steps on one batch.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from diagnostics.probes.result import (
    Findings,
    check_device_command,
    install_command,
    peak_memory_bytes,
)
from diagnostics.probes.rung import rung
from launch.config.job import place_job, resolve_job
from launch.config.request import Request
from launch.config.resolve import resolve
from rundir.atomic import scratch
from rundir.config import RunConfig, TrainConfig
from rundir.finding import Finding
from rundir.units import MIB

_NUM_STEPS = 6
# For the miniature, not the profile's model: large enough for six steps to show in bfloat16.
_LEARNING_RATE = 3e-3
# Six steps must take this fraction off the loss; on a working model they take a third or more. A
# broken one, for which all tokens are equally likely, stays at ln(vocab_size), which may be a
# hundredth below the first loss.
_LEAST_FALL = 0.1
_SMALL_HIDDEN_SIZE = 256  # a model up to this size is tested unchanged
_LIMITS = {"vocab_size": 512, "num_hidden_layers": 2, "max_position_embeddings": 256}
_HEAD_DIM = 16
_ROWS = (("What is 2 + 3?", "5"), ("Spell `rank`.", "r a n k"), ("Turn `lock` round.", "kcol"))
_MAX_NAMES = 3  # of parameters, on one line


@dataclass(slots=True, kw_only=True)
class StepsTaken:
    """The results of the steps: the mean loss per answer token before each step and after the last.

    The sets name trainable parameters: those whose gradient was not finite in some step, and those
    that have had only zero gradients so far.
    """

    untouched: set[str]
    not_finite: set[str] = field(default_factory=set)
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    num_parts: int = 0  # of the transformer blocks that can be recomputed in backward
    num_part_runs: int = 0  # one per part and step, about two where backward recomputes


@click.option(
    "--learning-rate", default=_LEARNING_RATE, show_default=True, help="Learning rate of this test."
)
@rung("single_gpu")
def main(findings: Findings, request: Request, _timeout_s: float, learning_rate: float) -> None:
    """Train a small model for a few steps on one device; exits with 4 if something is off."""
    config, sources = resolve_job(request, os.environ)
    with findings.reported("device", check_device_command()):  # a test on CPU would say nothing
        placed = place_job(replace(request, num_gpus=1), config, sources, os.environ).device
    if not config.architecture:
        tiny, _ = resolve("tiny", (), os.environ)
        config = replace(config, architecture=tiny.architecture)
    with findings.reported("imports", install_command()):
        from ranks.group import rank_device
    config = replace(config, architecture=miniature(config.architecture))
    mend = f"mend profiles/{request.profile}.toml, [architecture] and [model], where the line says"
    with scratch("single-gpu") as folder:
        with findings.reported("model", mend):
            device = rank_device(0)
            if placed == "cuda" != device.type:
                findings.add(not_on_gpu(device))
                findings.finish()
            model, batch = build(config, folder / "model", device)
            findings.add(describe(config, model, device))
        with findings.reported("steps", check_device_command()):
            training = train(model, batch, learning_rate)
            loss = judge_loss(training, learning_rate, peak_memory_bytes(device))
            findings.add(loss)
            findings.add(judge_gradients(training))
            if config.model.gradient_checkpointing and training.num_parts:
                findings.add(judge_recomputing(training))
    findings.finish(f"{device}: {loss.text}")


def not_on_gpu(device: Any) -> Finding:
    """Return the finding of a run that is for GPUs, where torch can use none of them."""
    return Finding(
        check="device",
        ok=False,
        text=f"ranks are to run on NVIDIA GPUs, and torch would train on {device}",
        do=check_device_command(),
    )


def miniature(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the architecture with two narrow layers and the same grouping of heads.

    One that is small already is returned unchanged.
    """
    small, hidden_size = dict(architecture), architecture.get("hidden_size", 0)
    num_layers = architecture.get("num_hidden_layers")
    if hidden_size <= _SMALL_HIDDEN_SIZE:
        return small
    for key, limit in _LIMITS.items():
        if key in small:
            small[key] = min(small[key], limit)
    num_heads = architecture.get("num_attention_heads", 1)
    num_kv_heads = architecture.get("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads == 0:  # otherwise, leave it to the model to complain
        group, num_kv_heads = num_heads // num_kv_heads, min(num_kv_heads, 2)
        num_heads = group * num_kv_heads
    small |= {"num_attention_heads": num_heads, "hidden_size": num_heads * _HEAD_DIM}
    if "num_key_value_heads" in small:
        small["num_key_value_heads"] = num_kv_heads
    if "head_dim" in small:
        small["head_dim"] = _HEAD_DIM
    if "intermediate_size" in small:
        ratio = architecture["intermediate_size"] / hidden_size
        small["intermediate_size"] = max(8, round(ratio * small["hidden_size"]))
    for key, value in small.items():
        if isinstance(value, list) and len(value) == num_layers:  # one entry for each layer
            small[key] = value[: small["num_hidden_layers"]]
    return small


def build(config: RunConfig, folder: Path, device: Any) -> tuple[Any, Any]:
    """Return the model on `device` as a rank gets it, and a batch of three samples (on CPU)."""
    import numpy as np

    from train.batches.batch import collate
    from train.chat.template import Template
    from train.data.dataset import prompted
    from train.files.served import tokenizer_of
    from train.model.build import add_method, load_model
    from train.model.make_checkpoint import make_checkpoint
    from train.step.try_attention import settle_attention

    make_checkpoint(config, folder)
    model = add_method(load_model(config, folder, device), config.train)
    settle_attention(model, config)
    tokenizer, template = tokenizer_of(folder), Template(folder)
    samples = []
    for prompt, response in _ROWS:
        before, after = (
            tokenizer.encode(text, add_special_tokens=False).ids
            for text in template.render(prompt, response)
        )
        samples.append(prompted(np.concatenate([before, after]), len(before)))
    return model, collate(samples)


def describe(config: RunConfig, model: Any, device: Any) -> Finding:
    """Report what is trained on what; this never fails."""
    num_parameters = sum(p.numel() for p in model.parameters())
    num_trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    model_type = str(config.architecture.get("model_type"))
    return Finding(
        check="model",
        ok=True,
        text=f"{model_type} in {config.model.dtype} on {device}, {config.train.method}: "
        f"{num_trainable:,} of {num_parameters:,} parameters are trained",
        figures={
            "model_type": model_type,
            "device": str(device),
            "dtype": config.model.dtype,
            "num_parameters": num_parameters,
            "num_trainable": num_trainable,
        },
    )


def train(model: Any, batch: Any, learning_rate: float) -> StepsTaken:
    """Take steps on `batch` as the training loop does, and check every gradient."""
    import torch

    from train.model.loss import SummedLoss
    from train.step.selftest import head_kind
    from train.update.optimizer import make_optimizer

    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = make_optimizer(model, TrainConfig(learning_rate=learning_rate))
    device = next(model.parameters()).device
    arguments = batch.arguments(device)
    summed, num_labels = (
        SummedLoss(model, head=head_kind(model)),
        max(1, batch.num_label_tokens),
    )
    training = StepsTaken(untouched=set(trainable))
    hooks = _count_block_runs(model, training)
    for _ in range(_NUM_STEPS):
        start = time.perf_counter()
        loss = summed(*arguments) / num_labels
        loss.backward()
        _note_gradients(trainable, training)
        torch.nn.utils.clip_grad_norm_(list(trainable.values()), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        training.losses.append(float(loss.detach()))  # waits for the device
        training.seconds.append(time.perf_counter() - start)
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        training.losses.append(float(summed(*arguments) / num_labels))
    return training


def _note_gradients(trainable: dict[str, Any], training: StepsTaken) -> None:
    for name, parameter in trainable.items():
        if parameter.grad is None:
            continue
        if not parameter.grad.isfinite().all():
            training.not_finite.add(name)
        if parameter.grad.any():  # half of an adapter gets gradients only from the second step on
            training.untouched.discard(name)


def _count_block_runs(model: Any, training: StepsTaken) -> list[Any]:
    """Count in `training` how often the parts of recomputable blocks run; return the hooks.

    The parts, not the blocks, because transformers 5.23 recomputes a block's forward without
    calling the block.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    def count(*_: Any) -> None:
        training.num_part_runs += 1

    blocks = [block for block in model.modules() if isinstance(block, GradientCheckpointingLayer)]
    parts = [part for block in blocks for part in block.children()]
    training.num_parts = len(parts)
    return [part.register_forward_pre_hook(count) for part in parts]


def judge_loss(training: StepsTaken, learning_rate: float, peak_bytes: int) -> Finding:
    """Return a finding that fails unless the loss stayed finite and fell clearly."""
    losses = training.losses
    is_finite, first, last = all(map(math.isfinite, losses)), losses[0], losses[-1]
    step_s = statistics.median(training.seconds[1:])
    text = f"loss {first:.4f} → {last:.4f} in {_NUM_STEPS} steps of {step_s * 1e3:.1f} ms, "
    text += f"peak memory {peak_bytes / MIB:.0f} MiB"
    fell = last <= first * (1 - _LEAST_FALL)
    if not is_finite:
        text += "; a loss is not finite"
    elif not fell:
        text += f"; it did not fall by {_LEAST_FALL:.0%}"
    do = check_device_command()
    if learning_rate != _LEARNING_RATE:
        do = f"leave out --learning-rate {learning_rate:g}: {_LEARNING_RATE:g} suits this test"
    return Finding(
        check="loss",
        ok=is_finite and fell,
        text=text,
        do=do,
        figures={"losses": losses, "step_s": step_s, "peak_memory_bytes": peak_bytes},
    )


def judge_gradients(training: StepsTaken) -> Finding:
    """Return a finding that fails unless every trainable parameter had gradients, all finite."""
    bad = {"not finite": sorted(training.not_finite), "zero or none": sorted(training.untouched)}
    parts = [
        f"{what} for {len(names)}: {', '.join(names[:_MAX_NAMES])}{'…' * (len(names) > _MAX_NAMES)}"
        for what, names in bad.items()
        if names
    ]
    return Finding(
        check="gradients",
        ok=not parts,
        text="; ".join(parts) or "finite, and not zero, for every parameter that is trained",
        do=check_device_command(),
        figures={"not_finite": bad["not finite"], "untouched": bad["zero or none"]},
    )


def judge_recomputing(training: StepsTaken) -> Finding:
    """Return a finding that fails if blocks to be recomputed in backward keep their activations."""
    runs = training.num_part_runs / training.num_parts / _NUM_STEPS
    return Finding(
        check="gradient checkpointing",
        ok=runs > 1,
        text=f"blocks run {runs:.1f} times a step"
        + ("" if runs > 1 else ": nothing is recomputed, so activations take full memory"),
        do="./test.sh   # this is a fault of train/, not of this machine",
        figures={"block_runs_per_step": runs},
    )


if __name__ == "__main__":
    main(prog_name="diagnostics.single_gpu")
