"""The work of a rank after the gate: meet the others, train, save. Importing it is expensive."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # typed as a script: before the imports, which would fail
    sys.exit(
        "airlock: train/worker.py is what a rank does after the gate, and no script.\n"
        "  → ./start.sh 32b   # which starts the ranks; ./start.sh YOUR.py starts your own script"
    )

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from machine.cores.cores import num_threads
from ranks.forks import watch_forks
from ranks.gpu_memory import report_out_of_memory
from ranks.group import Alone, Ranks, meet, part, rank_device
from ranks.mps import TRY_TIMEOUT_S, why_no_mps
from ranks.torch_compat import note_allocations
from ranks.watchdog import start_watchdog
from rundir.checkpoints import complete_checkpoints, incomplete_checkpoints, remove_half_written
from rundir.config import RunConfig
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import read_prepared
from train.batches.course import Course, course_of
from train.batches.feed import Feed, StepOrder, order_of
from train.data.dataset import SampleFile
from train.evaluation.all_sets import evaluation_sets
from train.model.attention import row_lengths
from train.model.build import add_method, compile_blocks, load_architecture, load_model, new_model
from train.model.export import write_results
from train.model.loading import check_same_weights, make_room, read_ahead
from train.model.loss import SummedLoss
from train.model.new_tokens import grow
from train.model.recompute import recompute_blocks
from train.step.loop import Trainer
from train.step.selftest import Tried, try_out
from train.stream.streamed_samples import StreamedSamples
from train.update.gradients import bucket_cap_mib

_COST_STEPS = 8  # whose batches are looked at before the first one


def load(
    config: RunConfig,
    run: RunDir,
    local_rank: int,
    inherited: Any = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Any:
    """Return the model on this rank's device, with what the method trains. Runs inside the gate.

    `tell` takes a line for people. `inherited` is the model that a warm rank was forked with; it
    only has to be moved. A model that will be received from rank 0 has no memory yet, and gets it
    in `train`.
    """
    # Set again here: a fork's OpenMP read OMP_NUM_THREADS long ago, in the zygote, and MKL would
    # cap it at the number of cores.
    torch.set_num_threads(num_threads())
    device = rank_device(local_rank)
    if "RANK" not in os.environ:
        device = plain_device(config, device, tell)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # On GPUs from Hopper on torch's sdpa prefers cuDNN's, which spends 0.4 s on each new shape.
        torch.backends.cuda.enable_cudnn_sdp(config.model.attention == "cudnn")
        if config.train.memory_history:
            note_allocations()
    with report_out_of_memory(run, print):
        if inherited is not None:
            # A step of an earlier attempt may have had too little memory with fewer.
            if (decided := _decided(config, run)).model.gradient_checkpointing:
                recompute_blocks(inherited, decided)
            return inherited.to(device)
        is_later = os.environ.get("RANK", "0") != "0"
        receives = read_prepared(run).loading.load == "broadcast" and is_later
        return build(config, run, torch.device("meta") if receives else device)


def build(config: RunConfig, run: RunDir, device: torch.device) -> Any:
    """Return the model on `device`, with what the method trains, from the run's prepared folder."""
    prepared = read_prepared(run)
    folder = Path(prepared.model_path)
    config = _decided(config, run)
    if device.type == "meta" or prepared.loading.load == "random":
        model = new_model(load_architecture(config.model, folder), config, device)
    else:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # this rank goes first, or is the zygote
            read_ahead(prepared.loading.read_ahead)
        model = load_model(config, folder, device)
    return add_method(grow(model, folder), config.train)


def _decided(config: RunConfig, run: RunDir) -> RunConfig:
    """Return the configuration with the plan's number of recomputed blocks in the place of auto."""
    if config.model.gradient_checkpointing != "auto":
        return config
    num = read_prepared(run).recomputed
    return replace(config, model=replace(config.model, gradient_checkpointing=num))


def plain_device(
    config: RunConfig,
    otherwise: torch.device,
    tell: Callable[[str], None] = lambda _: None,
    *,
    timeout_s: float = TRY_TIMEOUT_S,
) -> torch.device:
    """Return the device of a plain run: a Mac's GPU, if it works, instead of its CPU.

    It is tried out in a child first, for `timeout_s` at most: with some drivers it never answers.
    `tell` takes a line that says why it is not used.
    """
    if otherwise.type == "cuda" or config.launch.device != "auto":
        return otherwise
    if not torch.backends.mps.is_available():
        return otherwise
    if why_not := why_no_mps(timeout_s):
        tell(f"DEVICE: cpu, and not the GPU of this Mac (mps): {why_not}")
        return otherwise
    return torch.device("mps")


def train(
    config: RunConfig, run: RunDir, model: Any, events: EventWriter, *, is_shared: bool = False
) -> None:
    """Train `model` with the other ranks, evaluate, save a checkpoint and export.

    `is_shared` means that all ranks were forked with this one model. Raises whatever ends a rank;
    the caller tells the launcher.
    """
    rank = os.environ.get("RANK", "0")

    def say(text: str) -> None:
        events.emit("log", "line", text=f"[Rank {rank}] {text}")

    with report_out_of_memory(run, say):
        _train(config, run, model, events, is_shared=is_shared)


def _train(
    config: RunConfig, run: RunDir, model: Any, events: EventWriter, *, is_shared: bool
) -> None:
    device = next(model.parameters()).device
    if device.type == "meta":  # it will be received from rank 0
        device = rank_device(int(os.environ["LOCAL_RANK"]))
    pulse = start_watchdog(run)
    ranks = meet(device, events, config.launch.collective_timeout_s, pulse)
    watch_forks(ranks.say)
    prepared = read_prepared(run)
    if config.train.bf16_updates == "auto":  # the launcher's choice, by the plan
        config = replace(config, train=replace(config.train, bf16_updates=prepared.bf16_updates))
    if device.type == "cuda":  # the peak of loading is not that of training
        torch.cuda.reset_peak_memory_stats(device)
    with events.span("ddp.wrap"):
        if prepared.loading.load == "broadcast":
            make_room(model, ranks)
        tried = try_out(model, config, ranks)
        config = replace(config, data=replace(config.data, packing=tried.packed.packing))
        if config.model.compile:
            compile_blocks(model)
        is_sent = prepared.loading.load == "broadcast" and not is_shared
        wrapped = wrap(model, ranks, init_sync=is_sent, tried=tried)
        if not (is_sent or is_shared):  # forks have one copy of the weights
            check_same_weights(model, ranks)
    # The same state however the model was loaded, but another one on each rank, for dropout.
    torch.manual_seed(config.train.seed + ranks.rank)
    if ranks.is_first:
        remove_half_written(run)  # by an earlier attempt, whose ranks are all gone
    resume_from = _resume_from(run, ranks) or prepared.resume_from
    course = course_of(config, prepared.train.num_samples, resume_from)
    samples = _samples(config, run, ranks, course)
    order = samples if isinstance(samples, StreamedSamples) else order_of(samples, course)
    multiple = row_lengths(config, model, ranks.device)
    trainer = Trainer(
        config=config,
        run=run,
        ranks=ranks,
        model=wrapped,
        feed=Feed(samples, config, ranks.rank, ranks.world_size, order, multiple),
        evaluator=evaluation_sets(config, run, ranks, model, head=tried.head),
    )
    _tell_cost(config, samples, order, ranks)
    trainer.warm_up()
    trainer.restore(resume_from)
    result = trainer.train()
    if isinstance(samples, StreamedSamples):
        samples.end()
    pulse.tick("export")
    if result == "done" and ranks.is_first:
        with events.span("export"):
            trainer.take_best()
            write_results(config, run, model, ranks)
    trainer.announce(result)
    part(ranks)


def _tell_cost(
    config: RunConfig, samples: SampleFile | StreamedSamples, order: StepOrder, ranks: Ranks
) -> None:
    """Tell what batches by length cost beside packed rows: known beforehand of prepared samples."""
    if (
        config.data.packing != "by_length"
        or not ranks.is_first
        or isinstance(samples, StreamedSamples)
    ):
        return
    steps = range(order.course.first_step, order.course.num_steps)[:_COST_STEPS]
    if not steps:
        return
    packed = replace(config, data=replace(config.data, packing=True))
    feeds = [
        Feed(samples, count, ranks.rank, ranks.world_size, order) for count in (config, packed)
    ]
    (tokens, computed, batches), (_, in_rows, rows) = (
        map(sum, zip(*map(feed.tokens, steps), strict=True)) for feed in feeds
    )
    ranks.say(
        f"PACKING: by length, {len(steps)} steps compute {computed / tokens:.2f} times their "
        f"tokens, in {batches} micro-batches; packed rows would be {in_rows / tokens:.2f} times "
        f"them, in {rows}"
    )


def _samples(
    config: RunConfig, run: RunDir, ranks: Ranks, course: Course
) -> SampleFile | StreamedSamples:
    """Return the training samples, prepared or streamed."""
    prepared = read_prepared(run)
    if not prepared.train.is_streamed:
        return SampleFile(prepared.train)
    return StreamedSamples(
        config=config, run=run, prepared=prepared, ranks=ranks, events=ranks.events, course=course
    )


def _resume_from(run: RunDir, ranks: Ranks) -> str | None:
    """Return the last complete checkpoint of this run itself, if any, as after a restart."""
    own = complete_checkpoints(run.checkpoints)
    for path in incomplete_checkpoints(run.checkpoints) if ranks.is_first else ():
        ranks.say(f"RESUME: {path.name} is incomplete, and skipped")
    return str(own[-1]) if own else None


def wrap(
    model: Any, ranks: Ranks, *, init_sync: bool, tried: Tried | None = None
) -> DistributedDataParallel | SummedLoss:
    """Wrap the model and its loss in DDP; in a plain run, just return the loss.

    (No torch backend takes MPS tensors.) With `init_sync` all ranks get rank 0's weights; weights
    that are written are no longer shared. Buffers are sent before a forward pass only if the model
    changes them: for constants, as those of rotary positions, that would be a broadcast a step for
    nothing.
    """
    tried = tried or Tried()
    loss = SummedLoss(model, head=tried.head)
    if isinstance(ranks, Alone):
        return loss
    wrapped = DistributedDataParallel(
        loss,
        device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        init_sync=init_sync,
        find_unused_parameters=bool(tried.unused),
        bucket_cap_mb=bucket_cap_mib(model, ranks.world_size),
    )
    # The constructor's arguments differ: `broadcast_buffers=False` of torch 2.11 and 2.12 also
    # keeps `init_sync` from sending buffers, and 2.13 has `forward_sync_buffers` for this one.
    wrapped.broadcast_buffers = bool(tried.changed_buffers)
    return wrapped
