"""What a step would hold in memory, found by running it on the meta device: real code, no data."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

Device = Literal["cuda", "cpu"]
# Parts of a footprint, as far as they can be told by when a tensor is made.
Part = Literal["weights", "gradients", "optimizer", "activations", "logits"]
# What runs, in its order, and the part that what it makes belongs to.
STAGES: dict[str, Part] = {
    "wrap": "gradients",  # DDP's buckets, which gradients are views of
    "forward": "activations",
    "loss": "logits",
    "loss backward": "logits",
    "layers backward": "activations",
    "embedding backward": "activations",
    "optimizer": "optimizer",
}
_CUDA_BLOCK_BYTES = 512  # torch's CUDA allocator, with expandable segments as launch sets them
_MAX_FLASH_HEAD_DIM = 256
_ATEN = torch.ops.aten


class Storages(TorchDispatchMode):
    """Counts every storage on the meta device while it lives, and the peak of each stage.

    `peaks` has, for each stage, how many bytes of each part were held when their sum was highest.
    On a GPU that is what `torch.cuda.max_memory_allocated` sees, but for what kernels take for
    themselves: cuBLAS's workspace (8 to 32 MiB), and the accumulators of flash attention's
    backward, which runs when the larger part of its layer is free again.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.held = dict.fromkeys(set(STAGES.values()) | {"weights"}, 0)
        self.peaks: dict[str, dict[str, int]] = {}
        self._block_bytes = _CUDA_BLOCK_BYTES if device == "cuda" else 1
        self._live: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._highest: dict[str, int] = {}
        self.enter("wrap")

    def enter(self, stage: str) -> None:
        """From now on this runs."""
        self._stage = stage
        self._look()

    def restart(self) -> None:
        """Forget the peaks; what is held stays held."""
        self._highest, self.peaks = {}, {}

    def assign(self, tensors: Iterable[torch.Tensor], part: Part) -> None:
        """Count these as that part, whenever they were made."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            found = self._live.get(id(storage))
            if found is None:
                self._add(storage, part)
            else:
                reference, old, num_bytes = found
                self._live[id(storage)] = reference, part, num_bytes
                self.held[old] -= num_bytes
                self.held[part] += num_bytes

    def __torch_dispatch__(
        self, op: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `op` and count what it makes."""
        if op is _ATEN._local_scalar_dense.default and args[0].dtype == torch.bool:
            return True  # transformers asks whether nothing is padded or packed: so it is
        if op is _ATEN.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0]  # DDP gets its order of buckets from rank 0, which has the same
        result = op(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor) and one.is_meta:
                storage = one.untyped_storage()
                if id(storage) not in self._live:
                    self._add(storage, STAGES[self._stage])
        return result

    def _add(self, storage: torch.UntypedStorage, part: str) -> None:
        key, blocks = id(storage), -(-storage.nbytes() // self._block_bytes)
        num_bytes = blocks * self._block_bytes

        def freed(_: Any) -> None:
            _, part, num_bytes = self._live.pop(key)
            self.held[part] -= num_bytes

        self._live[key] = weakref.ref(storage, freed), part, num_bytes
        self.held[part] += num_bytes
        self._look()

    def _look(self) -> None:
        total = sum(self.held.values())
        if total > self._highest.get(self._stage, -1):
            self._highest[self._stage] = total
            self.peaks[self._stage] = dict(self.held)


@contextmanager
def kernels_of(device: Device) -> Iterator[None]:
    """On the meta device, take those kernels that torch chooses by the device and that hold more
    or less memory there than elsewhere. The choice itself needs a GPU, so it is written out here.
    """
    with ExitStack() as undo:

        def replace(module: Any, name: str, by: Callable[..., Any]) -> None:
            undo.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, by)

        replace(sys.modules[torch.optim.Optimizer.__module__], "_get_fused_kernels_supported_devices", lambda: ["meta"])
        if device == "cuda":
            replace(F, "scaled_dot_product_attention", _attention_on_cuda)
            replace(F, "dropout", _dropout_on_cuda)
        else:
            replace(F, "scaled_dot_product_attention", _attention_on_cpu)
        yield


def _attention_on_cuda(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """As ATen's transformers/cuda/sdp_utils.cpp chooses: flash, memory-efficient, else math.

    (cuDNN's, which newer GPUs prefer to flash, keeps the same for backward.)
    """
    same_size = query.shape[-1] == key.shape[-1] == value.shape[-1]
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if attn_mask is None and is_half and same_size and query.shape[-1] <= _MAX_FLASH_HEAD_DIM:
        return _ATEN._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if query.shape[1] == key.shape[1]:
        bias = None if attn_mask is None else _bias(attn_mask, query).expand(
            *query.shape[:3], key.shape[2]
        )  # fmt: skip
        return _ATEN._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, dropout_p, is_causal, scale=scale
        )[0]
    return _ATEN._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _attention_on_cpu(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """As ATen's transformers/sdp_utils_cpp.cpp chooses: flash, unless there is dropout."""
    if dropout_p == 0 and query.shape[-1] == key.shape[-1] == value.shape[-1]:
        bias = None if attn_mask is None else _bias(attn_mask, query)
        return _ATEN._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=bias, scale=scale
        )[0]
    return _ATEN._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _bias(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A mask of booleans as what is added to the scores; ATen makes one too, in every layer."""
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, like.new_zeros(()), like.new_full((), float("-inf")))


def _dropout_on_cuda(
    input: torch.Tensor,  # noqa: A002 - F.dropout's own name
    p: float = 0.5, training: bool = True, inplace: bool = False,  # noqa: ARG001
) -> torch.Tensor:  # fmt: skip
    """One fused kernel, which keeps a mask of a byte for each value."""
    return _ATEN.native_dropout(input, p, True)[0] if training and p > 0 else input
