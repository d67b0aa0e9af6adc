"""The stand-in for DDP where there are no other ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn


class Undistributed(nn.Module):
    """The stand-in for DDP in a plain run, where there is no rank to exchange gradients with.

    DDP would not work on every device anyway: no torch backend takes MPS tensors.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        """Return the module's output."""
        return self.module(*inputs)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: gradients are never exchanged."""
        return nullcontext()
