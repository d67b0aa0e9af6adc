"""The optimizer: AdamW; which weights decay; states whole, sharded or in 8 bits; learning rates."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import nn

from rundir.config import TrainConfig
from train.update.bf16 import remedied

_MATRIX_DIMS = 2
# The names that transformers' Trainer spares (get_decay_parameter_names): norms, and biases, those
# of stacked experts too.
_SPARED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
# What mamba_ssm marks with `_no_weight_decay`; transformers' own Mambas have the names alone.
_OF_STATE_SPACES = ("A_log", "D")


def make_optimizer(
    model: nn.Module, settings: TrainConfig, *, is_sharded: bool = False
) -> torch.optim.Optimizer:
    """Return AdamW over the weights of `model` that have gradients; `decays` says which decay.

    Fused, because it needs no temporary of the size of all parameters. `is_sharded`: each rank has
    the states of some parameters only, updates those and sends them to the others (ZeRO stage 1,
    Rajbhandari et al. 2020). In 8 bits a state takes a byte per weight, and a scale for every 256
    (Dettmers et al. 2022), by bitsandbytes, which leaves the states of small parameters as they
    are. `bf16_updates` is about parameters in bfloat16 alone (train/update/bf16.py): auto is
    master, as whoever knows the memory has chosen before; the seed is that of the noise.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for _, p in trained]
    decaying = [p for name, p in trained if decays(name, p)]
    others = [p for name, p in trained if not decays(name, p)]
    groups = [
        {"params": decaying, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.adam_beta1, settings.adam_beta2),
    }
    remedy = "master" if settings.bf16_updates == "auto" else settings.bf16_updates
    kind: Any  # a class, or what makes an optimizer as one would
    if remedy != "plain" and any(p.dtype == torch.bfloat16 for p in parameters):
        kind = remedied(settings.optimizer, parameters, remedy, settings.seed)
    elif settings.optimizer == "adamw-8bit":
        from bitsandbytes.optim.adamw import AdamW8bit

        kind = AdamW8bit
    else:
        kind, options["fused"] = torch.optim.AdamW, True
    if is_sharded:
        from torch.distributed.optim import (
            ZeroRedundancyOptimizer,  # half a second, and imports TorchScript
        )

        some = [group for group in groups if group["params"]]
        return ZeroRedundancyOptimizer(some, kind, **options)
    made: torch.optim.Optimizer = kind(groups, **options)
    return made


def decays(name: str, parameter: torch.Tensor) -> bool:
    """Return whether weight decay is for a parameter: for matrices and stacks of them.

    A vector may have the shape (1, 1, n), as in RWKV, whose own training code spares it as well.
    """
    is_vector = parameter.numel() == max(parameter.shape, default=1)
    if is_vector and parameter.dim() != _MATRIX_DIMS:
        return False
    is_spared = _SPARED.search(name.lower()) or getattr(parameter, "_no_weight_decay", False)
    return not is_spared and name.rpartition(".")[2] not in _OF_STATE_SPACES


def with_own_states(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer of the parameters whose states this rank has."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optim", optimizer)
    return inner


def learning_rate(config: TrainConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of `step` (from 0): linear warm-up, then the schedule, to its floor.

    Cosine: m + (1 - m) · (1 + cos πx) / 2 of the peak, with m = `min_lr_ratio` and x the share of
    the steps after the warm-up.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    after = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    left = (1 + math.cos(math.pi * after)) / 2 if config.schedule == "cosine" else 1 - after
    least = config.min_lr_ratio
    return config.learning_rate * (least + (1 - least) * left)
