"""The operations and bytes of a step's kernels, counted while it is traced: what a roofline needs.

A kernel takes at least the time of its operations, and at least that of reading its inputs and
writing its outputs once (Williams et al. 2009, "Roofline").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_ATEN = torch.ops.aten
# These read only some rows of their first tensor, as many as they return.
_LOOKING_UP = {_ATEN.embedding, _ATEN.index_select, _ATEN.gather, _ATEN.index}
# These change only some values of their first tensor.
_SCATTERING = {_ATEN.scatter_add_, _ATEN.index_add_, _ATEN.index_put_}
_NO_KERNEL = {
    _ATEN.empty,
    _ATEN.empty_like,
    _ATEN.new_empty,
    _ATEN.empty_strided,
    _ATEN._unsafe_view,
}
_WRITING_ONLY = {_ATEN.zero_, _ATEN.fill_, _ATEN.copy_}


class Work:
    """The sums over the kernels since `restart`.

    `matrix_flops` and `matrix_bytes` are of products of matrices and of attention, a multiplication
    and an addition being two operations; `other_bytes` are of all other kernels, whose operations
    take less time than their bytes.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> dict[str, int]:
        """Return the sums so far and begin anew."""
        before = dict(self.__dict__)
        self.matrix_flops = self.matrix_bytes = self.other_bytes = 0
        return before

    @property
    def num_bytes(self) -> int:
        """The bytes of all kernels."""
        return self.matrix_bytes + self.other_bytes

    def add(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Add a kernel that was given these arguments and returned `result`."""
        num_bytes = _moved_bytes(op, args, kwargs, result)
        flops = _flops(op, args, kwargs, result)
        if flops:
            self.matrix_flops += flops
            self.matrix_bytes += num_bytes
        else:
            self.other_bytes += num_bytes


def _flops(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the operations of a product of matrices or attention, and 0 for other kernels.

    Causal attention computes half of its scores.
    """
    kernel = op._overloadpacket
    if (varlen := _VARLEN.get(str(kernel))) is not None:
        return varlen(*args)
    in_place = kernel is _ATEN.addmm_
    formula: Callable[..., int] | None = flop_registry.get(_ATEN.addmm if in_place else kernel)
    if formula is None:
        return 0
    flops = formula(*args, **kwargs, out_val=result)
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return flops // 2 if given.get("is_causal") else flops


def _varlen_forward(query: Any, _key: Any, value: Any, *more: Any) -> int:
    longest = int(more[2])
    return int(query.shape[0] * longest * query.shape[1] * (query.shape[2] + value.shape[2]))


def _varlen_backward(_gradient: Any, query: Any, key: Any, value: Any, *more: Any) -> int:
    # Five products instead of two: the scores are computed again.
    return _varlen_forward(query, key, value, *more[2:]) * 5 // 2


_VARLEN: dict[str, Callable[..., int]] = {
    "torch_attn._varlen_attn": _varlen_forward,
    "torch_attn._varlen_attn_backward": _varlen_backward,
}


def _moved_bytes(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Return the bytes that a kernel reads and writes; none if it returns a view."""
    kernel, schema = op._overloadpacket, op._schema
    is_view = any(out.alias_info and not out.alias_info.is_write for out in schema.returns)
    if is_view or kernel in _NO_KERNEL:
        return 0
    made = _bytes_of(result)
    if kernel in _LOOKING_UP:
        return 2 * made
    if kernel in _SCATTERING:
        return 3 * _bytes_of(args[1:])
    read = _bytes_of((*args, *kwargs.values()))
    if kernel in _WRITING_ONLY:
        return read
    # What is changed in place, and not returned, is written too.
    changed = (
        value
        for value, argument in zip(args, schema.arguments, strict=False)
        if argument.alias_info and argument.alias_info.is_write
    )
    return read + (made or _bytes_of(list(changed)))


def _bytes_of(value: Any) -> int:
    """Return the bytes of tensors, or lists of them; a value that is expanded counts once."""
    if isinstance(value, tuple | list):
        return sum(map(_bytes_of, value))
    if not isinstance(value, torch.Tensor):
        return 0
    num = value.numel() * value.element_size()
    return min(num, value.untyped_storage().nbytes())
