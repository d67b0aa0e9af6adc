"""RMS norms computed by torch's own function: one kernel on a GPU instead of eight.

transformers writes each norm out: the values are turned into float32, squared, averaged and
multiplied in kernels of their own, and most of what lies between is kept for backward. In float32
the results are the same; in bfloat16 torch rounds once where transformers does so twice.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

_EPSILONS = ("variance_epsilon", "eps")  # its names in transformers
_ULP = {torch.float32: 1e-6, torch.bfloat16: 2**-7}  # of values near one


def use_torch_norms(model: nn.Module) -> None:
    """Have the RMS norms of a Hugging Face model computed by torch where that is their formula."""
    for module in model.modules():
        kind: Any = type(module)
        if kind.__name__.endswith("RMSNorm") and _is_plain(module):
            module.__class__ = _by_torch(kind)


def _is_plain(module: Any) -> bool:
    """Return whether a norm is x / rms(x) · weight; others of its class may have no weight."""
    if set(module._parameters) != {"weight"} or module._buffers or module._modules:
        return False
    try:
        return all(_agrees(module, dtype) for dtype in _ULP)
    except Exception:  # noqa: BLE001 - any model's code: what fails here is left as it is
        return False


def _agrees(module: Any, dtype: torch.dtype) -> bool:
    """Return whether a small copy of `module` computes what torch does, where epsilon matters too.

    Raises whatever the code of the module raises.
    """
    values = torch.linspace(-2.0, 3.0, 48, device="cpu").reshape(3, 16)
    scale = torch.tensor([1.0, 1e-3, 30.0], device="cpu").unsqueeze(1)
    x, weight = (values * scale).to(dtype), (1.0 + values[0] / 4).to(dtype)
    small = copy.copy(module)
    small._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
    expected = type(module).forward(small, x)
    computed = F.rms_norm(x, (16,), weight, epsilon_of(module))
    ulp = _ULP[dtype]
    return computed.dtype == expected.dtype and torch.allclose(computed, expected, rtol=ulp, atol=0)


def epsilon_of(norm: Any) -> float:
    """Return what a norm adds to the mean square. Raises AttributeError if it has no such."""
    name = next((name for name in _EPSILONS if hasattr(norm, name)), _EPSILONS[0])
    return float(getattr(norm, name))


@functools.cache
def _by_torch(kind: Any) -> Any:
    """Return a class of the same name that computes the norm by torch."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype != x.dtype:  # what results then is up to the model's own code
            return kind.forward(self, x)
        return F.rms_norm(x, self.weight.shape, self.weight, epsilon_of(self))

    members = {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), members)
