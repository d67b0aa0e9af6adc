"""The norm of the gradients, by which they are clipped, and reported before that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils import clip_grads_with_norm_

from ranks.torch_compat import norms_in_float32


def gradient_norm(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of all gradients as one vector, a scalar in float32 whatever their dtype.

    torch's own is in bfloat16 for gradients in bfloat16, which is three digits.
    """
    norms = norms_in_float32([weight.grad for weight in weights if weight.grad is not None])
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_gradients(weights: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scale the gradients down to a norm of `max_norm`, if it is more; return what it was."""
    norm = gradient_norm(weights)
    clip_grads_with_norm_(weights, max_norm, norm)
    return norm
