"""LoRA's products added to what the layer itself computes, in one kernel each, in place.

peft computes `result + lora_B(lora_A(x)) * scaling`: a product that is written to memory, then
multiplied, then added, each as large as the layer's output; and in backward a gradient of the input
each for layer and adapter, which are then added. A matrix product can add as it writes (BLAS' GEMM
with beta = 1): output and gradient are read and written once. Nor is the last layer of a block
computed again for backward, which needs its input only.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners import lora
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D


class OneProductLinear(lora.Linear):
    """A layer of peft's with an adapter, whose product is added as it is computed.

    What is no plain adapter on frozen weights (several at once, DoRA, dropout, one that is merged
    or switched off) is computed by peft as ever.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the layer's output with its adapter's, (..., outputs), in the layer's dtype."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if args or kwargs or len(names) != 1 or not self._is_plain(names[0], x):
            return super().forward(x, *args, **kwargs)
        base: Any = self.get_base_layer()
        weight = base.weight.t() if isinstance(base, Conv1D) else base.weight
        first, second = (
            cast("nn.Linear", pair[names[0]]).weight.to(x.dtype)
            for pair in (self.lora_A, self.lora_B)
        )
        rows, scaling = x.reshape(-1, x.shape[-1]), self.scaling[names[0]]
        low, tie = _Low.apply(rows, weight, first, second, scaling)
        output = _Output.apply(tie, rows, weight, base.bias, low, second, scaling)
        return cast("torch.Tensor", output.view(*x.shape[:-1], output.shape[-1]))

    def drops(self, name: str) -> bool:
        """Return whether the adapter's input has dropout now."""
        return self.training and getattr(self.lora_dropout[name], "p", 0.0) > 0

    def _is_plain(self, name: str, x: torch.Tensor) -> bool:
        """Return whether the adapter is two matrices beside frozen weights, all in x's dtype."""
        if self.disable_adapters or self.merged or name in self.lora_variant:
            return False
        if torch.compiler.is_compiling():  # whose kernels add as they write anyway
            return False
        base: Any = self.get_base_layer()
        own = [tensor for tensor in (base.weight, base.bias) if tensor is not None]
        if any(tensor.requires_grad or tensor.dtype != x.dtype for tensor in own):
            return False
        if self.drops(name):
            return False
        pair: list[Any] = [self.lora_A[name], self.lora_B[name]]
        dtypes = {getattr(layer, "dtype", layer.weight.dtype) for layer in pair}  # of LowLinear's
        return dtypes == {x.dtype} and all(layer.bias is None for layer in pair)


class _Low(torch.autograd.Function):
    """The product with A, and all of backward; the large products are left to `_Output`.

    A block that is recomputed stops once it has made what backward needs: before `_Output`, if that
    is the last. So what it needs is kept here, and the gradient of the output comes through `tie`,
    which has the output's shape and no memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        scaling: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x·Aᵀ and `tie`; x is (rows, inputs), A = `first`, B = `second`."""
        low = x @ first.t()
        ctx.save_for_backward(x, weight, first, second, low)
        ctx.scaling = scaling
        ctx.mark_non_differentiable(low)
        return low, x.new_zeros(()).expand(x.shape[0], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, _: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of x, A and B from that of the output."""
        x, weight, first, second, low = ctx.saved_tensors
        of_low = (gradient @ second).mul_(ctx.scaling)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = (gradient @ weight).addmm_(of_low, first)
        of_second = (gradient.t() @ low).mul_(ctx.scaling)
        return of_x, None, of_low.t() @ x, of_second, None


class _Output(torch.autograd.Function):
    """x·Wᵀ + b + scaling · low·Bᵀ; W and b are frozen, and nothing is kept."""

    @staticmethod
    def forward(
        _ctx: Any,
        _tie: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        low: torch.Tensor,
        second: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        """Return the output, (rows, outputs)."""
        return F.linear(x, weight, bias).addmm_(low, second.t(), alpha=scaling)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Pass the gradient on to `_Low`."""
        return gradient, *[None] * 6


def add_in_one_product(model: nn.Module) -> None:
    """Have adapters on plain matrices compute so; four bits have kernels of their own."""
    for module in model.modules():
        if type(module) is lora.Linear and type(module.get_base_layer()) in (nn.Linear, Conv1D):
            module.__class__ = OneProductLinear
