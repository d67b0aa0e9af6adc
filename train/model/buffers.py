"""Buffers that a model changes while it trains, as batch normalisation does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def buffers_watched(model: Any) -> Iterator[list[str]]:
    """Fill the list, when the block ends, with the names of buffers that have changed inside.

    Those that were changed in place have their values back afterwards; the block may be a trial.
    Values are compared, as some kernels change running averages without autograd's knowledge.
    Buffers on the meta device have none, and are taken not to change.
    """
    changed: list[str] = []
    before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        name: (buffer, buffer.detach().clone())
        for name, buffer in model.named_buffers()
        if not buffer.is_meta
    }
    yield changed
    after = dict(model.named_buffers())
    for name, (buffer, values) in before.items():
        if after.get(name) is not buffer:
            changed.append(name)
        elif not _is_equal(buffer, values):
            changed.append(name)
            buffer.detach().copy_(values)


def _is_equal(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the values are equal, with NaN equal to itself."""
    same = first == other
    if first.is_floating_point():
        same |= first.isnan() & other.isnan()
    return bool(same.all())
