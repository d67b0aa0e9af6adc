"""Linear layers in four bits: QLoRA's frozen base (Dettmers et al. 2023, section 3).

nf4, in blocks of 64 weights with a scale each, and the scales quantised as well: 0.516 bytes per
weight. Embedding, head and norms stay as they are. Importing bitsandbytes initialises CUDA if there
is a GPU, so nothing here may run in the zygote.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig
from transformers.pytorch_utils import Conv1D


def quantization(dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return transformers' settings for loading in four bits; `dtype` is that of computations."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def quantize(model: Any, dtype: torch.dtype) -> None:
    """Replace a model's linear layers, where they are, by those that `quantization` would load.

    One after the other, each original released as soon as its replacement is there, so that no more
    than one exists twice. On the meta device only shapes and dtypes are made, for a plan.
    """
    from bitsandbytes.functional import quantize_blockwise

    # Its table of values stays, for the whole process, on the device that needs it first: not meta.
    quantize_blockwise(torch.zeros(1))
    head = model.get_output_embeddings()
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    ]
    for name in names:  # not modules: a list of them would keep every original to the end
        model.set_submodule(name, _in_four_bits(model.get_submodule(name), dtype))
    model.is_loaded_in_4bit = True  # set as transformers does; peft reads it


def _in_four_bits(module: nn.Linear | Conv1D, dtype: torch.dtype) -> nn.Module:
    from bitsandbytes.nn.modules import Linear4bit, Params4bit

    weight = module.weight.data.T if isinstance(module, Conv1D) else module.weight.data
    num_outputs, num_inputs = weight.shape
    made = Linear4bit(
        num_inputs, num_outputs, bias=False, compute_dtype=dtype, quant_type="nf4", device="meta"
    )
    made.bias = module.bias
    made.weight = Params4bit(weight, requires_grad=False, quant_type="nf4", module=made)
    made.weight._quantize(weight.device)  # its `to` does this too, but never on the meta device
    return made


def ready_to_train(model: nn.Module) -> None:
    """Disable what would undo or break four-bit weights while a model trains.

    On some CPUs bitsandbytes repacks weights at the first evaluation, in a form that has no
    backward.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.__dict__["support_avx512bf16_for_cpu"] = False


def states_of(parameter: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that belong to a four-bit weight: scales, and tables to decode them."""
    state = getattr(parameter, "quant_state", None)
    tensors = []
    while state is not None:
        tensors += [
            tensor for tensor in (state.absmax, state.code, state.offset) if tensor is not None
        ]
        state = state.state2
    return tensors


def weights_in(parameter: torch.Tensor) -> int:
    """Return the number of weights in a parameter; in four bits a byte holds two."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()
