"""A trace of one step of the trainer's own code, on the meta device."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PretrainedConfig

from ranks.group import Ranks
from ranks.torch_compat import default_group, fake_store
from rundir.config import RunConfig
from rundir.paths import RunDir
from train.batches.batch import Batch
from train.batches.feed import Feed
from train.model.attention import FLASH_ATTN, choose_attention
from train.model.build import add_method, new_model, num_weights, plain_model
from train.model.head import layers_of
from train.model.new_tokens import grow
from train.model.quantize import states_of
from train.model.recompute import blocks_of
from train.model.varlen import VARLEN, NotForVarlenError, register, use_masks
from train.step.loop import Trainer
from train.step.selftest import try_step
from train.trace.kernels import Device, kernels_of
from train.trace.optimizer_share import ALL, Bytes, Shape, largest_share, states_by_shape
from train.trace.storages import Storages
from train.update.optimizer import with_own_states
from train.worker import wrap

WARM_UP = "warm-up, "  # before the name of a stage
_META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Counts and bytes of one model, and the work of a micro-batch and of an update.

    `peaks` are those of `Storages` for the second step, and, with WARM_UP before their names, for
    what comes before the first one. The optimizer's states are whole, and `states` are those of a
    parameter of each shape. `of_a_block` are the activations that each block adds to a peak.
    """

    counts: dict[str, int]
    peaks: dict[str, dict[str, int]]
    states: dict[Shape, Bytes]
    of_a_block: dict[str, int] = field(default_factory=dict)

    def plus(self, other: Trace, times: int) -> Trace:
        """Return this trace plus `times` what `other` has more than it."""

        def add(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
            return {key: counts[key] + times * (more[key] - counts[key]) for key in counts}

        peaks = {stage: add(parts, other.peaks[stage]) for stage, parts in self.peaks.items()}
        states = self.states | other.states
        return Trace(counts=add(self.counts, other.counts), peaks=peaks, states=states)

    def with_share(self, share: Bytes) -> Trace:
        """Return this trace with only a share of the optimizer's states."""
        exact, held = share
        whole = self.counts["optimizer_held"]
        counts = self.counts | {"optimizer": exact, "optimizer_held": held}
        counts["update_bytes"] = counts["update_bytes"] * held // whole
        peaks = {
            stage: parts
            if stage.startswith(WARM_UP)
            else parts | {"optimizer": parts["optimizer"] - whole + held}
            for stage, parts in self.peaks.items()
        }
        return replace(self, counts=counts, peaks=peaks)


def trace(described: PretrainedConfig, config: RunConfig, device: Device) -> Trace:
    """Trace a model of that architecture as `config` trains it, with the largest possible batch.

    A sharded optimizer is traced whole: see `Trace.with_share`. Raises whatever the model's code
    raises: some of it looks at values, and there are none.
    """
    config = replace(config, train=replace(config.train, shard_optimizer=False))
    is_flash = choose_attention(config, described, on_cuda=device == "cuda") == FLASH_ATTN
    if is_flash:  # its kernels do not support meta; torch's own keep the same
        config = replace(config, model=replace(config.model, attention=VARLEN))
    folder = Path(config.model.path) if config.model.path else None
    base = grow(new_model(described, config, _META, for_cuda=device == "cuda"), folder)
    if is_flash:
        register(beyond=True)
    num_base = num_weights(base)
    with _META:  # else adapters are made on the CPU first
        model = add_method(base, config.train)
    with kernels_of(device), Storages(device, is_packed=False):
        try:
            tried = try_step(model)
        except NotForVarlenError:  # nor does a run use it then, once its own trial has failed
            if config.model.attention != "auto":
                raise
            use_masks(base)
            tried = try_step(model)
    storages = Storages(device, is_packed=config.data.may_share_rows)
    storages.assign(_weights(model), "weights")
    with _group(config.launch.num_ranks) as ranks, kernels_of(device), storages:
        wrapped: Any = wrap(model, ranks, init_sync=False, tried=tried)
        # Not annotated: DDP would reject annotations, which are strings here.
        wrapped.register_comm_hook(None, lambda _, bucket: _reduced(bucket))
        _enter_stages(wrapped, storages)
        trainer = _trainer(config, wrapped, ranks)
        trainer.warm_up()
        before = {f"{WARM_UP}{stage}": parts for stage, parts in storages.restart().items()}
        storages.enter("optimizer")
        trainer.update(0.0)  # makes the optimizer's states
        storages.restart()
        storages.work.restart()
        batches = _batches(config)
        trainer.gradients(batches, 1.0)
        work = {name: value // len(batches) for name, value in storages.work.restart().items()}
        storages.enter("optimizer")
        trainer.update(0.0)
        work["update_bytes"] = storages.work.num_bytes
        states = states_by_shape(with_own_states(trainer.optimizer), storages)
    exact, held = states.pop(ALL)
    counts = _counts(model) | {"num_base": num_base, "optimizer": exact, "optimizer_held": held}
    counts |= work
    return Trace(counts=counts, peaks=before | storages.peaks, states=states)


def share_of(model: Any, config: RunConfig, states: dict[Shape, Bytes]) -> Bytes:
    """Return the share of a sharded optimizer's states that the fullest of all ranks has.

    `model` is the whole model on the meta device, with what is trained.
    """
    with _group(config.launch.num_ranks) as ranks, kernels_of("cuda"):
        return largest_share(_trainer(config, model, ranks).optimizer, states)


def _counts(model: Any) -> dict[str, int]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return {
        "num_parameters": num_weights(model),
        "num_trainable": sum(parameter.numel() for parameter in trainable),
        "num_blocks": len(blocks_of(model)),
        "weights": sum(tensor.nbytes for tensor in _weights(model)),
        "gradients": sum(parameter.nbytes for parameter in trainable),
    }


def _weights(model: Any) -> list[torch.Tensor]:
    """Return all tensors that exist before anything runs."""
    of_four_bits = chain.from_iterable(map(states_of, model.parameters()))
    return [*model.parameters(), *model.buffers(), *of_four_bits]


def _trainer(config: RunConfig, wrapped: Any, ranks: Ranks) -> Trainer:
    """Return the trainer of a rank, without data and with a run folder that it does not touch."""
    samples: Any = range(config.train.global_batch_size)
    return Trainer(
        config=config,
        run=RunDir(Path(os.devnull)),
        ranks=ranks,
        model=wrapped,
        feed=Feed(samples, config, ranks.rank, ranks.world_size),
        evaluator=None,
    )


class _Full(Batch):
    """A batch in which every token but the first of each row is predicted; it has no data."""

    def arguments(self, device: torch.device | str = "cpu") -> tuple[Any, ...]:
        """Return arguments like those of a batch, but on the meta device."""
        assert torch.device(device).type == "meta"
        rows, tokens = self.input_ids.shape
        where = torch.empty(rows * (tokens - 1), dtype=torch.long, device=_META)
        cu_seq_lens = torch.empty(rows + 1, dtype=torch.int32, device=_META)
        return self.input_ids, self.position_ids, where, where, cu_seq_lens, tokens, None


def _batches(config: RunConfig) -> list[Batch]:
    """Return a rank's largest micro-batches, at most two: the second finds gradients in place."""
    train = config.train
    share = math.ceil(train.global_batch_size / config.launch.num_ranks)
    num_rows = min(share, train.micro_batch_size)
    ids = torch.empty((num_rows, config.data.max_seq_length), dtype=torch.long, device=_META)
    batch = _Full(ids, ids, ids.numel(), ids.clone() if config.data.may_share_rows else None)
    return [batch] * min(2, math.ceil(share / num_rows))


def _enter_stages(wrapped: Any, storages: Storages) -> None:
    """Tell the storages which stage runs, with hooks on the model.

    The head counts as loss: a chunked loss computes both together.
    """
    summed = wrapped.module
    model = summed.model
    plain = plain_model(model)

    def before(module: Any, stage: str) -> None:
        module.register_forward_pre_hook(lambda *_: storages.enter(stage))

    def after(module: Any, stage: str, backward: str) -> None:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            hidden = output if isinstance(output, torch.Tensor) else output[0]
            storages.enter(stage)
            hidden.register_hook(lambda _: storages.enter(backward))

        module.register_forward_hook(hook)

    before(wrapped, "wrap")
    before(summed, "forward")
    after(plain.get_input_embeddings(), "forward", "embedding backward")
    after(layers_of(plain) or plain.base_model, "loss", "layers backward")
    summed.register_forward_hook(lambda *_: storages.enter("loss backward"))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda gradient: storages.assign([gradient.grad], "gradients")
            )


@contextmanager
def _group(num_ranks: int) -> Iterator[Ranks]:
    """Form a fake process group of `num_ranks` ranks."""
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=num_ranks)
    try:
        control = default_group()
        yield Ranks(rank=0, world_size=num_ranks, device=_META, control=control)
    finally:
        dist.destroy_process_group()


def _reduced(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Return the rank's own gradients in the place of the sum over ranks."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
