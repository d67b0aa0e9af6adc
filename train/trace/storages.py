"""The memory a step would hold, found by running it on the meta device: real code, no data."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Literal

import torch

from ranks.torch_compat import TorchDispatchMode
from rundir.footprint import Moment
from train.trace.kernels import Device
from train.trace.work import Work

# Parts of a footprint, as far as the time at which a tensor is made identifies them.
Part = Literal["weights", "gradients", "optimizer", "activations", "logits"]
# What runs, in order: the part to which the tensors it makes belong, and what that is in a plan.
STAGES: dict[str, tuple[Part, Moment]] = {
    "wrap": ("gradients", "forward"),  # DDP's buckets, which gradients are views of
    "forward": ("activations", "forward"),
    "loss": ("logits", "loss"),
    "loss backward": ("logits", "backward"),
    "layers backward": ("activations", "backward"),
    "embedding backward": ("activations", "backward"),
    "optimizer": ("optimizer", "optimizer"),
}
_CUDA_BLOCK_BYTES = 512  # torch's CUDA allocator, with the expandable segments that launch sets
_ATEN = torch.ops.aten


class Storages(TorchDispatchMode):
    """Counts every storage on the meta device while it lives, and the peak of each stage.

    `work` has what the kernels do. `peaks` has, for each stage, the bytes of each part when their
    sum was highest. On a GPU that is what `torch.cuda.max_memory_allocated` reports, except for
    what kernels allocate themselves: cuBLAS's workspace (8 to 32 MiB), and the accumulators of
    flash attention's backward, which runs when the larger part of its layer is free again.
    """

    def __init__(self, device: Device, *, is_packed: bool) -> None:
        super().__init__()
        self._is_packed = is_packed
        self.work = Work()
        self.held = dict.fromkeys({part for part, _ in STAGES.values()} | {"weights"}, 0)
        self.peaks: dict[str, dict[str, int]] = {}
        self._block_bytes = _CUDA_BLOCK_BYTES if device == "cuda" else 1
        self._live: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._highest: dict[str, int] = {}
        self.enter("wrap")

    def enter(self, stage: str) -> None:
        """Begin a stage."""
        self._stage = stage
        self._note_peak()

    def restart(self) -> dict[str, dict[str, int]]:
        """Return the peaks so far and forget them; what is held stays held."""
        peaks, self._highest, self.peaks = self.peaks, {}, {}
        return peaks

    def assign(self, tensors: Iterable[torch.Tensor], part: Part) -> None:
        """Count these tensors as that part, whenever they were made."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = self._live.get(id(storage))
            if known is None:
                self._add(storage, part)
            else:
                reference, old, num_bytes = known
                self._live[id(storage)] = reference, part, num_bytes
                self.held[old] -= num_bytes
                self.held[part] += num_bytes

    def __torch_dispatch__(
        self, op: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `op` and count what it makes."""
        if op is _ATEN._local_scalar_dense.default and args[0].dtype == torch.bool:
            return not self._is_packed  # transformers asks whether each row is one sample
        if op is _ATEN.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0]  # DDP gets its bucket order from rank 0, which has the same
        result = op(*args, **(kwargs or {}))
        self.work.add(op, args, kwargs or {}, result)
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                storage = tensor.untyped_storage()
                if id(storage) not in self._live:
                    self._add(storage, STAGES[self._stage][0])
        return result

    def held_bytes(self, storage: torch.UntypedStorage) -> int:
        """Return the bytes that the device's allocator takes for `storage`: whole blocks."""
        return -(-storage.nbytes() // self._block_bytes) * self._block_bytes

    def _add(self, storage: torch.UntypedStorage, part: str) -> None:
        key, num_bytes = id(storage), self.held_bytes(storage)

        def freed(_: Any) -> None:
            _, part, num_bytes = self._live.pop(key)
            self.held[part] -= num_bytes

        self._live[key] = weakref.ref(storage, freed), part, num_bytes
        self.held[part] += num_bytes
        self._note_peak()

    def _note_peak(self) -> None:
        total = sum(self.held.values())
        if total > self._highest.get(self._stage, -1):
            self._highest[self._stage] = total
            self.peaks[self._stage] = dict(self.held)
