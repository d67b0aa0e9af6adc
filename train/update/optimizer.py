"""The optimizer: AdamW, with weight decay on matrices only; states whole, sharded or in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from train.update.bf16 import remedied

_BETAS = (0.9, 0.95)  # as GPT-3 and its descendants are trained (Brown et al. 2020, appendix B)
_MATRIX_DIMS = 2


def make_optimizer(
    parameters: Sequence[torch.nn.Parameter],
    *,
    learning_rate: float,
    weight_decay: float,
    is_sharded: bool = False,
    in_8_bits: bool = False,
    bf16_updates: Literal["auto", "master", "stochastic", "plain"] = "auto",
    seed: int = 0,
) -> torch.optim.Optimizer:
    """Return AdamW over `parameters`; norms and biases, which have one dimension, do not decay.

    Fused, because it needs no temporary of the size of all parameters. `is_sharded`: each rank has
    the states of some parameters only, updates those and sends them to the others (ZeRO stage 1,
    Rajbhandari et al. 2020). `in_8_bits`: a state takes a byte per weight, and a scale for every
    256 (Dettmers et al. 2022), by bitsandbytes, which leaves the states of small parameters as they
    are. `bf16_updates` is about parameters in bfloat16 alone (train/update/bf16.py): auto is
    master, as whoever knows the memory has chosen before; `seed` is that of the noise.
    """
    decaying = [p for p in parameters if p.dim() >= _MATRIX_DIMS]
    others = [p for p in parameters if p.dim() < _MATRIX_DIMS]
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {"lr": learning_rate, "betas": _BETAS}
    remedy = "master" if bf16_updates == "auto" else bf16_updates
    kind: Any  # a class, or what makes an optimizer as one would
    if remedy != "plain" and any(p.dtype == torch.bfloat16 for p in parameters):
        name: Literal["adamw", "adamw-8bit"] = "adamw-8bit" if in_8_bits else "adamw"
        kind = remedied(name, parameters, remedy, seed)
    elif in_8_bits:
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


def with_own_states(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer of the parameters whose states this rank has."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optim", optimizer)
    return inner
