"""The memory guard: kills the process that takes the memory before the kernel kills any.

The kernel's choice is not ours, its message is in a log that few may read, and in a container with
`memory.oom.group` it kills everything, this launcher too. So a thread of `launch` looks often, and
more often the less memory is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil
from rich.console import Console

from machine.memory.host_memory import Available, HostMemory
from machine.memory.limits import guard_threshold_bytes
from machine.processes.descendants import OwnProcesses, is_alive, kill
from rundir.config import LimitsConfig
from rundir.errors import ExitCode, UserError
from rundir.events import Event, EventWriter
from rundir.units import GIB, MIB
from state.memory_owners import MemoryOwner, fastest, largest, memory_owners
from state.out_of_memory import by_guard, by_kernel
from state.run_state import RunState

_LOOKS_S = (0.01, 0.5)  # shortest and longest time between two looks
_FASTEST = 16 * GIB  # bytes per second: several times what a few threads can touch
_HORIZON_S = 0.03  # one look, and the time for a process to be seen and to die
_RATE_S = 0.1  # time over which the rate is measured
_REMEMBERED_S = 5.0
_OWNERS_FROM = 0.25  # when no more than this share of memory is left, note who holds how much
_OWNERS_EVERY_S, _OWNERS_SHARE = 0.25, 0.02  # how often, and the share of time it may take
_REST_S = 1.0  # longest wait for the memory of a killed process


@dataclass(frozen=True, slots=True)
class _Look:
    mono: float
    memory: Available
    num_oom_kills: int


class MemoryGuard:
    """The guard of one run, from `start` to `stop`."""

    def __init__(
        self,
        limits: LimitsConfig,
        *,
        state: RunState,
        events: EventWriter,
        processes: OwnProcesses,
        console: Console,
    ) -> None:
        self._state, self._events, self._processes = state, events, processes
        self._console = console
        self._memory = HostMemory()
        self.threshold_bytes = guard_threshold_bytes(limits, self._memory.now().total_bytes)
        self._looks: tuple[_Look, ...] = ()  # replaced as a whole: the main thread reads it too
        self._owners: deque[tuple[float, dict[str, int]]] = deque()
        self._next_owners = 0.0
        self._ended: list[psutil.Process] = []
        self._ended_at = 0.0
        self._num_proven = 0  # the kernel's count when it last served as proof
        self._ended_who: Event | None = None
        self._has_said = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory guard", daemon=True)

    def start(self) -> None:
        """Start guarding."""
        self._look()
        self._thread.start()

    def stop(self) -> None:
        """Stop guarding."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # priority takes a privilege that not everybody has
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            try:
                wait_s = self._look()
            except (OSError, psutil.Error):  # a process or cgroup vanished while it was read
                wait_s = _LOOKS_S[0]

    def _look(self) -> float:
        """Look once, and act if need be; return the seconds until the next look."""
        now = time.monotonic()
        memory = self._memory.now(with_swap=True)
        recent = [sample for sample in self._looks if now - sample.mono < _REMEMBERED_S]
        self._looks = (*recent, _Look(now, memory, self._memory.num_oom_kills()))
        rate = self._loss_per_s()
        soon_bytes = memory.available_bytes - rate * _HORIZON_S
        room_bytes = memory.available_bytes - self.threshold_bytes
        if memory.available_bytes < memory.total_bytes * _OWNERS_FROM:
            self._note_owners(now)
        if self.threshold_bytes and soon_bytes < self.threshold_bytes:
            self._act(memory, is_last_moment=soon_bytes < self.threshold_bytes / 2)
        elif room_bytes > self.threshold_bytes:
            self._has_said = False
        shortest_s, longest_s = _LOOKS_S
        return min(longest_s, max(shortest_s, room_bytes / max(rate, _FASTEST) / 4))

    def _loss_per_s(self) -> float:
        """Return the rate at which available memory has shrunk recently, in bytes per second."""
        last = self._looks[-1]
        before = next(sample for sample in self._looks if last.mono - sample.mono <= _RATE_S)
        if before is last and len(self._looks) > 1:
            before = self._looks[-2]
        lost = before.memory.available_bytes - last.memory.available_bytes
        return max(0.0, lost / max(last.mono - before.mono, _LOOKS_S[0]))

    def _note_owners(self, now: float) -> None:
        if now < self._next_owners:
            return
        owners = memory_owners(self._state, self._processes.alive())
        self._owners.append((now, {owner.who: owner.held_bytes for owner in owners}))
        while now - self._owners[0][0] > _REMEMBERED_S:
            self._owners.popleft()
        cost_s = time.monotonic() - now
        self._next_owners = now + max(_OWNERS_EVERY_S, cost_s / _OWNERS_SHARE)

    def _act(self, memory: Available, *, is_last_moment: bool) -> None:
        """Kill the owner that takes the memory; one already killed gets time to release its own."""
        is_resting = time.monotonic() - self._ended_at < _REST_S
        ending = [process for process in self._ended if is_alive(process)] if is_resting else []
        if ending and not is_last_moment:
            return
        alive = [process for process in self._processes.alive() if process not in ending]
        owners = memory_owners(self._state, alive)
        before = self._owners[0][1] if self._owners else {}
        victim = fastest(owners, before, self.threshold_bytes)
        # If none of ours grows, someone else does; then another run's guard should act first.
        if victim is None and is_last_moment:
            victim = largest(owners, self.threshold_bytes)
        held = sum(owner.held_bytes for owner in owners)
        fields = {"run_held_bytes": held, **_available(memory)}
        if victim is not None:
            self._end(victim, fields)
        elif memory.available_bytes < self.threshold_bytes / 2:
            self._say_others(fields)

    def _end(self, victim: MemoryOwner, fields: dict[str, Any]) -> None:
        for process in victim.processes:
            kill(process)
        # Only now: writing takes memory too, and may have to wait for some.
        self._ended, self._ended_at = self._ended + victim.processes, time.monotonic()
        fields |= {
            "failed_rank": victim.rank,
            "who": victim.who,
            "phase": victim.phase,
            "held_bytes": victim.held_bytes,
        }
        self._ended_who = fields
        self._events.emit("error", "memory.guard", **fields)

    def _say_others(self, fields: dict[str, Any]) -> None:
        """Report that others hold the memory, once until there is room again."""
        if self._has_said:
            return
        self._has_said = True
        self._events.emit("mark", "memory.low", **fields)
        self._console.out(
            f"airlock: memory is short: {fields['available_bytes'] // MIB:,} MiB left of "
            f"{fields['limit_bytes'] // MIB:,} MiB of {fields['where']}; this run holds "
            f"{fields['run_held_bytes'] // MIB:,} MiB, so ending any of it would not help",
        )

    def proves_oom(self, events: Iterable[Event], agent_code: int | None) -> bool:
        """Return whether a process was killed as the kernel's OOM count rose, and record it."""
        was_killed = agent_code == -signal.SIGKILL or any(
            event["name"] in ("rank.exit", "zygote.exit") and event["signal"] == "SIGKILL"
            for event in events
        )
        return was_killed and self._note_oom_kills() is not None

    def _note_oom_kills(self) -> Event | None:
        """Record that the kernel's count has just risen; return the fields, or None if not."""
        looks = self._looks
        try:
            num = self._memory.num_oom_kills()
        except OSError:  # the cgroup is gone, and its count with it
            return None
        num_kills = num - max(looks[0].num_oom_kills, self._num_proven)
        if num_kills <= 0:
            return None
        self._num_proven = num
        tightest = min(
            (sample.memory for sample in looks), key=lambda sample: sample.available_bytes
        )
        fields = {"num_kills": num_kills, **_available(tightest)}
        self._events.emit("error", "memory.oom_kill", **fields)
        return fields

    def explained(self, error: UserError) -> UserError:
        """Return `error`, or its cause if the preparing process was killed for its memory."""
        oom_kill: Event | None = None
        if self._ended_who is None and "killed by signal 9" in str(error):
            oom_kill = self._note_oom_kills()
        if self._ended_who is not None:
            title, (where, *advice) = by_guard(self._ended_who)
        elif oom_kill is not None:
            title, (where, *advice) = by_kernel(oom_kill)
        else:
            return error
        do = "\n  ".join(advice).removeprefix("→ ")
        return UserError(f"{error.args[0]}: {title}\n  {where}", do=do, code=ExitCode.OUT_OF_MEMORY)


def _available(memory: Available) -> dict[str, Any]:
    """Return the fields that the memory events share."""
    return {
        "available_bytes": memory.available_bytes,
        "limit_bytes": memory.total_bytes,
        "where": memory.where,
    }
