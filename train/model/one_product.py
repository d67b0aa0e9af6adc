"""LoRA's product added to the layer's own output in one kernel, in place.

peft computes `result + lora_B(lora_A(x)) * scaling`: a product that is written to memory, then
multiplied, then added, each as large as the layer's output. A matrix product can do all three as it
writes (BLAS' GEMM with beta = 1): the output is read and written once.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners import lora
from torch import nn
from transformers.pytorch_utils import Conv1D


class OneProductLinear(lora.Linear):
    """A layer of peft's with an adapter, whose product is added as it is computed.

    What is no plain adapter (several at once, DoRA, one that is merged or switched off) is computed
    by peft as ever.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the layer's output with its adapter's, (..., outputs), in the layer's dtype."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        is_off = self.disable_adapters or self.merged
        if args or kwargs or is_off or len(names) != 1 or names[0] in self.lora_variant:
            return super().forward(x, *args, **kwargs)
        (name,) = names
        output: torch.Tensor = self.base_layer(x)
        first, second = cast("nn.Linear", self.lora_A[name]), cast("nn.Linear", self.lora_B[name])
        low = first(self.lora_dropout[name](self._cast_input_dtype(x, first.weight.dtype)))
        second_weight = second.weight.to(low.dtype)
        if second.bias is not None or low.dtype != output.dtype:
            return (output + second(low) * self.scaling[name]).to(output.dtype)
        rows = output.reshape(-1, output.shape[-1])
        rows.addmm_(low.reshape(-1, low.shape[-1]), second_weight.t(), alpha=self.scaling[name])
        return rows.view_as(output)


def add_in_one_product(model: nn.Module) -> None:
    """Have adapters on plain matrices compute so, in place; four bits have kernels of their own."""
    for module in model.modules():
        if type(module) is lora.Linear and type(module.get_base_layer()) in (nn.Linear, Conv1D):
            module.__class__ = OneProductLinear
