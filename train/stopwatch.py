"""How long the parts of a step take, on whatever computes them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

HOST_PARTS = ("data", "comm")  # waiting parts, whose time on the host is their real time
DEVICE_PARTS = ("forward", "backward", "optimizer")  # on a GPU these only queue work

Event = Callable[[], Any]  # makes what torch.cuda.Event is


class Stopwatch:
    """Sums seconds by part. On a GPU its own time is taken, between events in its queue.

    Until the sums are asked for nothing waits for the GPU.
    """

    def __init__(self, device: torch.device, *, make_event: Event | None = None) -> None:
        """`make_event`: how to time this device from within its queue; by default as CUDA does."""
        if make_event is None and device.type == "cuda":
            make_event = partial(torch.cuda.Event, enable_timing=True)
        self._make_event = make_event
        self._is_queued = make_event is None and device.type != "cpu"  # and no telling how long
        self._pending: deque[tuple[str, Any, Any]] = deque()
        self._seconds: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        """Forget everything so far."""
        self._pending.clear()
        self._seconds = dict.fromkeys((*HOST_PARTS, *DEVICE_PARTS), 0.0)

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Count the time of the block to `part`."""
        if self._make_event is None or part in HOST_PARTS:
            start = time.monotonic()
            yield
            self._seconds[part] += time.monotonic() - start
            return
        begin, end = self._make_event(), self._make_event()
        begin.record()
        yield
        end.record()
        self._pending.append((part, begin, end))

    def collect(self) -> None:
        """Take in the events that have passed, so that there are never more than are queued."""
        while self._pending and self._pending[0][2].query():
            self._take()

    def seconds(self) -> dict[str, float | None]:
        """The sums; where the device has not computed all yet, this waits for it.

        None for the parts of a device that cannot be timed.
        """
        while self._pending:
            self._pending[0][2].synchronize()
            self._take()
        unknown = DEVICE_PARTS if self._is_queued else ()
        return {part: None if part in unknown else sum_ for part, sum_ in self._seconds.items()}

    def _take(self) -> None:
        part, begin, end = self._pending.popleft()
        self._seconds[part] += begin.elapsed_time(end) / 1e3  # events tell milliseconds
