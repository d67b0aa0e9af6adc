"""The follower of a run, which keeps state, status and memory use up to date from its events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from machine.gpus.gpu_samples import GpuSample, GpuSampler
from machine.memory.process_memory import tree_memory
from rundir.events import Event, EventWriter, RunEvents
from rundir.paths import RunDir
from rundir.status import write_status
from state.run_state import RunState

_STATUS_EVERY_S = 0.5
_SAME_STATUS_EVERY_S = 5.0  # a sign of life, where nothing has changed
_CHEAP_S = 0.05  # a measurement of that cost is also made when a rank has loaded something
_MEMORY_SHARE = 0.002  # of the time may go into measuring memory, which walks page tables


class Follower:
    """The follower of one run, whose status this process writes."""

    def __init__(self, run: RunDir, state: RunState, events: EventWriter, gpus: GpuSampler) -> None:
        self._run, self._state, self._events, self._gpus = run, state, events, gpus
        self._incoming = RunEvents(run.events)
        self._next_status = self._next_memory = self._memory_cost_s = 0.0
        self._status: dict[str, Any] = {}  # as last written
        self._next_same_status = 0.0
        self._has_loaded = False  # a process of the run, since memory was measured

    def new_events(self) -> list[Event]:
        """Return the events of all processes of the run since the last call, in order of time."""
        return self._incoming.new_events()

    def take_in(self, events: Iterable[Event]) -> None:
        """Update the state with `events`."""
        for event in events:
            self._state.add(event)
            self._has_loaded |= event["name"] in ("mem.post_import", "mem.post_model")

    def write_when_due(self) -> None:
        """Write the status, and measure host memory and GPUs of the run, each when it is due."""
        now = time.monotonic()
        for news in self._gpus.new():
            if isinstance(news, GpuSample):
                self._events.emit("metric", "gpu", **asdict(news))
            else:
                self._events.emit("mark", "gpu.silent", **asdict(news))
        is_cheap = self._has_loaded and self._memory_cost_s <= _CHEAP_S
        if now >= self._next_memory or is_cheap:
            self._has_loaded = False
            memory = tree_memory()
            self._events.emit("metric", "host", **memory)
            self._memory_cost_s = time.monotonic() - now
            self._next_memory = now + max(1.0, self._memory_cost_s / _MEMORY_SHARE)
        if now >= self._next_status:
            self._next_status = now + _STATUS_EVERY_S
            status = asdict(self._state.status) | {"updated_t": 0.0}
            if status != self._status or now >= self._next_same_status:
                self._status, self._next_same_status = status, now + _SAME_STATUS_EVERY_S
                self.write_status()

    def stop_sampling(self) -> None:
        """Ask for no more samples of the GPUs."""
        self._gpus.stop()

    def write_status(self) -> None:
        """Write status.json now; a full disk is no reason to end a run."""
        self._state.status.updated_t = time.time()
        with contextlib.suppress(OSError):
            write_status(self._run, self._state.status)
