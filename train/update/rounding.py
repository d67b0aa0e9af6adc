"""Rounding to bfloat16 at random: up or down, so that the result is right on average."""

from __future__ import annotations

import torch

_LOST_BITS = 16  # of float32's 32, that bfloat16 does not have


def round_at_random(values: torch.Tensor, noise: torch.Generator) -> None:
    """Round `values`, in float32, in place to numbers that bfloat16 has.

    The probability of each neighbour is the share of the way to it: 16 random bits are added to
    those that bfloat16 lacks, which are then cut off (as in Gupta et al. 2015, "Deep Learning with
    Limited Numerical Precision"). What is infinite or no number stays as it is.
    """
    bits = values.view(torch.int32)
    drawn = torch.empty_like(bits)
    if not values.is_meta:  # a generator has a device, and meta is none
        drawn.random_(0, 1 << _LOST_BITS, generator=noise)
    # Added to the bits of a NaN, noise may give an ordinary number.
    drawn.masked_fill_(values.isfinite().logical_not_(), 0)
    bits.add_(drawn).bitwise_and_(-(1 << _LOST_BITS))
