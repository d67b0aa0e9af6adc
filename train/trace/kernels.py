"""The kernels that torch would choose on another device, for a trace on the meta device.

Only those that hold more or less memory than on other devices; the choice itself needs a GPU, so it
is reproduced here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch.nn import functional as F

Device = Literal["cuda", "cpu"]
_MAX_FLASH_HEAD_DIM = 256
_ATEN = torch.ops.aten


@contextmanager
def kernels_of(device: Device) -> Iterator[None]:
    """Have the meta device use the kernels of that device inside the block."""
    with ExitStack() as undo:

        def replace(module: Any, name: str, by: Callable[..., Any]) -> None:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, by)

        optimizers = sys.modules[torch.optim.Optimizer.__module__]
        replace(optimizers, "_get_fused_kernels_supported_devices", lambda: ["meta"])
        # peft disables autocast for the device of its tensors, and meta has none.
        replace(torch, "autocast", partial(_autocast, torch.autocast, device))
        replace(F, "grouped_mm", partial(_grouped_mm, F.grouped_mm))
        if device == "cuda":
            replace(F, "scaled_dot_product_attention", _attention_on_cuda)
            replace(F, "dropout", _dropout_on_cuda)
            replace(F, "rms_norm", _rms_norm_on_cuda)
        else:
            replace(F, "scaled_dot_product_attention", _attention_on_cpu)
        yield


def _attention_on_cuda(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> Any:
    """Choose like ATen's transformers/cuda/sdp_utils.cpp: flash, memory-efficient, else math.

    (cuDNN's, which newer GPUs prefer to flash, keeps the same for backward.)
    """
    same_size = query.shape[-1] == key.shape[-1] == value.shape[-1]
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if attn_mask is None and is_half and same_size and query.shape[-1] <= _MAX_FLASH_HEAD_DIM:
        return _ATEN._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=more.get("scale")
        )[0]
    if query.shape[1] == key.shape[1]:
        bias = _bias(attn_mask, query)
        if bias is not None:
            bias = bias.expand(*query.shape[:3], key.shape[2])
        return _ATEN._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, dropout_p, is_causal, scale=more.get("scale")
        )[0]
    return _attention_by_math(query, key, value, attn_mask, dropout_p, is_causal, **more)


def _attention_by_math(*given: Any, **more: Any) -> Any:
    return _ATEN._scaled_dot_product_attention_math(*given, **more)[0]


def _attention_on_cpu(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> Any:
    """Choose like ATen's transformers/sdp_utils_cpp.cpp: flash, unless there is dropout."""
    if dropout_p == 0 and query.shape[-1] == key.shape[-1] == value.shape[-1]:
        return _ATEN._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            0.0,
            is_causal,
            attn_mask=_bias(attn_mask, query),
            scale=more.get("scale"),
        )[0]
    return _attention_by_math(query, key, value, attn_mask, dropout_p, is_causal, **more)


def _autocast(own: Any, device: Device, device_type: str, *given: Any, **more: Any) -> Any:
    return own(device if device_type == "meta" else device_type, *given, **more)


def _grouped_mm(own: Any, rows: Any, weight: Any, *, offs: Any = None, **more: Any) -> Any:
    """Multiply the matrices of experts; torch's own has a meta kernel for bfloat16 only."""
    if rows.dtype == torch.bfloat16:
        return own(rows, weight, offs=offs, **more)
    return torch.ops.transformers.grouped_mm_fallback(rows, weight, offs)


def _bias(mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """Return a boolean mask as a bias to add to the scores; ATen makes one too, in every layer."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, like.new_zeros(()), like.new_full((), float("-inf")))


class _RmsNorm(torch.autograd.Function):
    """The fused norm, which torch has for no meta tensors: kernels that read and write as much."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Read and write x once, and keep a number of each row in float32 as well."""
        rms = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rms)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Read x and its norm's gradient once, and write that of x."""
        x, weight, _ = ctx.saved_tensors
        return gradient + x, weight.clone() if ctx.needs_input_grad[1] else None


def _rms_norm_on_cuda(x: torch.Tensor, _shape: Any, weight: Any, _eps: float) -> torch.Tensor:
    norm: torch.Tensor = _RmsNorm.apply(x, weight)
    return norm


def _dropout_on_cuda(
    input: torch.Tensor,  # noqa: A002 - F.dropout's own name
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Apply dropout as one fused kernel, which keeps a mask of one byte per value."""
    return _ATEN.native_dropout(input, p, True)[0] if training and p > 0 else input
