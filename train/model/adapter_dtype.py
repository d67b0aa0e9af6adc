"""Adapters that multiply in the dtype of their layer, and keep their own weights in float32.

peft keeps adapters in float32, and turns the input of each into float32 as well: their products
then run without tensor cores, and a copy of every input, twice as large, is kept for backward. Here
the weights of an adapter are turned into the layer's dtype instead, at each use, which is what
autocast would do; why not autocast itself: docs/decisions/0020-adapters-in-bfloat16.md.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.dora import DoraLinearLayer
from peft.utils.integrations import dequantize_module_weight
from torch import nn
from torch.nn import functional as F


class LowLinear(nn.Linear):
    """A linear layer with float32 weights whose product is computed in another dtype."""

    def __init__(self, of: nn.Linear, dtype: torch.dtype) -> None:
        """Take over the parameters of `of`, as they are; its product will be in `dtype`."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = of.in_features, of.out_features
        self.weight, self.bias, self.dtype = of.weight, of.bias, dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - nn.Linear's own name
        """Return the product, in `dtype`; the gradients of the weights are in theirs."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return F.linear(input.to(self.dtype), self.weight.to(self.dtype), bias)


class ExactNorm(DoraLinearLayer):
    """DoRA's magnitudes, with the norms of weights in float32 whatever the dtype of the layer.

    In bfloat16 they would be off by up to 0.4 %, and so would every output, from the first step.
    """

    def __init__(self, of: Any) -> None:
        """Take over the magnitudes of `of`, as they are."""
        super().__init__(of.fan_in_fan_out)
        self.weight = of.weight

    def get_weight_norm(
        self,
        weight: torch.Tensor,
        lora_weight: torch.Tensor,
        scaling: float,
        adapter_name: str | None = None,
    ) -> torch.Tensor:
        """Return the norm of each row of `weight` + `scaling` · `lora_weight`, (rows,)."""
        norm: torch.Tensor = super().get_weight_norm(
            weight.float(), lora_weight.float(), scaling, adapter_name=adapter_name
        )
        return norm

    def begin_at(self, base: nn.Module) -> None:
        """Set the magnitudes to the norms of the base's rows; peft rounds them to bfloat16."""
        weight = dequantize_module_weight(base).detach()
        with torch.no_grad():
            self.weight.copy_(self.get_weight_norm(weight, weight.new_zeros(()), 0.0))


def compute_in_dtype_of_layers(model: nn.Module, *, is_new: bool) -> int:
    """Have adapters on layers in bfloat16 multiply in bfloat16; return the number of such layers.

    `is_new`: they have not been trained yet.

    Those on layers in float32 stay exactly as peft made them; those of experts are computed by peft
    in the dtype of the experts. It holds for as long as the model lives, however it is run.
    """
    layers = [
        module for module in model.modules() if isinstance(module, LoraLayer) and _is_low(module)
    ]
    for layer in layers:
        layer.cast_input_dtype_enabled = False  # what peft.helpers.disable_input_dtype_casting sets
        for pair in (layer.lora_A, layer.lora_B):
            for name, adapter in pair.items():
                pair[name] = LowLinear(cast("nn.Linear", adapter), torch.bfloat16)
        for name, magnitudes in layer.lora_magnitude_vector.items():
            layer.lora_magnitude_vector[name] = exact = ExactNorm(magnitudes)
            if is_new:
                exact.begin_at(layer.get_base_layer())
    return len(layers)


def _is_low(layer: Any) -> bool:
    """Return whether a layer multiplies in bfloat16, by adapters that are plain matrices."""
    adapters = [*layer.lora_A.values(), *layer.lora_B.values()]
    if hasattr(layer, "parameter_name") or not adapters:  # of experts, or of an embedding
        return False
    if any(type(adapter) is not nn.Linear for adapter in adapters):
        return False
    base = layer.get_base_layer()
    dtype = base.compute_dtype if hasattr(base.weight, "quant_state") else base.weight.dtype
    return dtype is torch.bfloat16
