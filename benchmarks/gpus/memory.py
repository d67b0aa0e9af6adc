"""The memory in use on a GPU, sampled through NVML."""

from __future__ import annotations

import threading
import time

from machine.gpus.devices import Gpu
from machine.gpus.nvml import driver_state

_SAMPLE_S = 0.05


def used_bytes(gpu: Gpu | None) -> int | None:
    """Return what anyone has in use on `gpu`; None without one, or if its driver is silent."""
    state = driver_state() if gpu is not None else None
    return None if state is None or gpu is None else state.gpus[gpu.index].used_bytes


class GpuMemory:
    """The peak memory in use on a GPU within the block, by anyone, above the level before."""

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu, self._stop = gpu, threading.Event()
        self.before_bytes = used_bytes(gpu)
        self._samples: list[tuple[float, int]] = []
        self._add(self.before_bytes)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def peak_bytes(self) -> int | None:
        """The difference; None if there is no GPU, or its driver has not responded."""
        return self.peak_since(0.0)

    def peak_since(self, mono: float) -> int | None:
        """Return the peak from a monotonic time on, such as that at which a model was loaded."""
        later = [used for at, used in self._samples if at >= mono]
        if self.before_bytes is None or not later:
            return None
        return max(later) - self.before_bytes

    def _add(self, used: int | None) -> None:
        if used is not None:
            self._samples.append((time.monotonic(), used))

    def _watch(self) -> None:
        while self._samples and not self._stop.wait(_SAMPLE_S):
            self._add(used_bytes(self._gpu))
