"""What a rank does after the gate: meet the others, train, save. Importing it is heavy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from rundir.checkpoints import (
    complete_checkpoints,
    incomplete_checkpoints,
    remove_half_written,
)
from rundir.config import RunConfig
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import read_prepared
from train.data.dataset import SampleFile
from train.model.build import (
    add_method,
    compile_blocks,
    load_architecture,
    load_model,
    load_tokenizer,
    new_model,
)
from train.model.export import write_results
from train.model.head import Head
from train.model.loading import make_room, read_ahead
from train.model.loss import SummedLoss
from train.model.new_tokens import grow
from train.rank.forks import watch_forks
from train.rank.group import Alone, Ranks, meet, part, rank_device
from train.rank.threads import num_threads
from train.rank.watchdog import start_watchdog
from train.step.evaluate import Evaluator
from train.step.loop import Trainer, Undistributed
from train.step.selftest import Tried, try_out
from train.stream.stream import Stream


def load(config: RunConfig, run: RunDir, local_rank: int, inherited: Any = None) -> Any:
    """The model on this rank's device, with what the method trains. Done inside the gate.

    `inherited` is the model that a warm rank was forked with: it only has to be moved. One that is
    to be received from rank 0 comes without memory, and gets it in `train`.
    """
    # Said again: a fork's OpenMP has read OMP_NUM_THREADS long ago, in the zygote, and MKL would
    # have it be no more than there are cores.
    torch.set_num_threads(num_threads())
    device = rank_device(local_rank)
    if "RANK" not in os.environ:
        device = plain_device(config, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if inherited is not None:
        return inherited.to(device)
    receives = read_prepared(run).loading.load == "broadcast" and os.environ.get("RANK", "0") != "0"
    return build(config, run, torch.device("meta") if receives else device)


def build(config: RunConfig, run: RunDir, device: torch.device) -> Any:
    """The model on `device`, with what the method trains, from the run's prepared folder."""
    prepared = read_prepared(run)
    folder = Path(prepared.model_path)
    if device.type == "meta" or prepared.loading.load == "random":
        model = new_model(load_architecture(config.model, folder), config, device)
    else:
        if os.environ.get("LOCAL_RANK", "0") == "0":  # it goes first, or is the zygote
            read_ahead(prepared.loading.read_ahead)
        model = load_model(config, folder, device)
    return add_method(grow(model, folder), config.train)


def plain_device(config: RunConfig, otherwise: torch.device) -> torch.device:
    """That of a plain run: a Mac's GPU, where there is one, instead of its CPU."""
    if otherwise.type == "cuda" or config.launch.device != "auto":
        return otherwise
    return torch.device("mps") if torch.backends.mps.is_available() else otherwise


def train(
    config: RunConfig, run: RunDir, model: Any, events: EventWriter, *, is_shared: bool = False
) -> None:
    """Train `model` with the other ranks, evaluate, save a checkpoint, export.

    `is_shared`: it is one model that all ranks were forked with. Raises whatever ends a rank; the
    caller tells the launcher.
    """
    device = next(model.parameters()).device
    if device.type == "meta":  # to be received from rank 0
        device = rank_device(int(os.environ["LOCAL_RANK"]))
    pulse = start_watchdog(run)
    ranks = meet(device, events, config.launch.collective_timeout_s, pulse)
    watch_forks(lambda text: events.emit("log", "line", text=f"[Rank {ranks.rank}] {text}"))
    prepared = read_prepared(run)
    if device.type == "cuda":  # what loading took for a moment is not what training takes
        torch.cuda.reset_peak_memory_stats(device)
    with events.span("ddp.wrap"):
        if prepared.loading.load == "broadcast":
            make_room(model, ranks)
        tried = try_out(model, config, ranks, events)
        if config.model.compile:
            compile_blocks(model)
        wrapped = wrap(model, ranks, init_sync=not is_shared, tried=tried)
    torch.manual_seed(config.train.seed + ranks.rank)  # however the model came, and its own dropout
    samples = _samples(config, run, ranks, events)
    trainer = Trainer(
        config=config,
        run=run,
        ranks=ranks,
        events=events,
        model=wrapped,
        samples=samples,
        evaluator=_evaluator(config, run, ranks, events, model, head=tried.head),
    )
    trainer.warm_up()
    if ranks.is_first:
        remove_half_written(run)  # by an attempt before this one; all its ranks are gone
    trainer.restore(_resume_from(run, ranks, events) or prepared.resume_from)
    result = trainer.train()
    if isinstance(samples, Stream):
        samples.end()
    pulse.tick("export")
    if result == "done" and ranks.is_first:
        with events.span("export"):
            write_results(config, run, model, events)
    trainer.announce(result)
    part(ranks)


def _resume_from(run: RunDir, ranks: Ranks, events: EventWriter) -> str | None:
    """The last whole checkpoint of this very run: there is one if it was restarted."""
    own = complete_checkpoints(run.checkpoints)
    for path in incomplete_checkpoints(run.checkpoints) if ranks.is_first else ():
        text = f"[Rank 0] RESUME: {path.name} is not whole, and passed over"
        events.emit("log", "line", text=text)
    return str(own[-1]) if own else None


def wrap(
    model: Any, ranks: Ranks, *, init_sync: bool, tried: Tried | None = None
) -> DistributedDataParallel | Undistributed:
    """With `init_sync` all ranks get rank 0's weights: what is written to is no longer shared."""
    tried = tried or Tried()
    loss = SummedLoss(model, head=tried.head)
    if isinstance(ranks, Alone):
        return Undistributed(loss)
    return DistributedDataParallel(
        loss,
        device_ids=[ranks.device] if ranks.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        init_sync=init_sync,
        find_unused_parameters=bool(tried.unused),
    )


def _samples(
    config: RunConfig, run: RunDir, ranks: Ranks, events: EventWriter
) -> SampleFile | Stream:
    """What is trained on."""
    prepared = read_prepared(run)
    if not prepared.train.is_streamed:
        return SampleFile(prepared.train)
    return Stream(config=config, run=run, prepared=prepared, ranks=ranks, events=events)


def _evaluator(
    config: RunConfig,
    run: RunDir,
    ranks: Ranks,
    events: EventWriter,
    model: Any,
    *,
    head: Head,
) -> Evaluator | None:
    prepared = read_prepared(run)
    if prepared.evaluation is None:
        return None
    tokenizer = load_tokenizer(
        Path(prepared.model_path), trust_remote_code=config.model.trust_remote_code
    )
    return Evaluator(
        loss=SummedLoss(model, head=head),
        prepared=prepared.evaluation,
        tokenizer=tokenizer,
        ranks=ranks,
        events=events,
        run=run,
        config=config,
    )
