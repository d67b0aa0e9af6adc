"""The optimizer: AdamW, fused, with weight decay on matrices only."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_BETAS = (0.9, 0.95)  # as GPT-3 and its descendants are trained (Brown et al. 2020, appendix B)
_MATRIX_DIMS = 2


def make_optimizer(
    parameters: Sequence[torch.nn.Parameter], *, learning_rate: float, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over `parameters`; norms and biases, which have one dimension, do not decay.

    Fused, because it needs no temporary of the size of all parameters.
    """
    decaying = [p for p in parameters if p.dim() >= _MATRIX_DIMS]
    others = [p for p in parameters if p.dim() < _MATRIX_DIMS]
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=_BETAS, fused=True)
