"""Starts with little memory: in a memory cgroup that the kernel's OOM killer guards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.starts.cases import Case, Figures
from benchmarks.starts.launchers import Ready
from benchmarks.starts.memory_cgroup import memory_cgroup
from benchmarks.starts.starting import NotReadyError, Start, started

_TIMEOUT_S = 240.0  # a launcher that has lost ranks may wait for them for ever


def start_capped(
    case: Case, model: Path | None, gate: Path, figures: Figures, say: Callable[[str], None]
) -> None:
    """Start all runs of a case at once under its cap; a run that does not come up also counts.

    They share the folder `gate`. Raises NoCgroupError if no cgroup can be made.
    """
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(memory_cgroup(case.cap_mb * 1_000_000))
        begin = time.monotonic()
        starts = [
            stack.enter_context(started(case, model, gate=gate, wrap=group.command))
            for _ in range(case.num_runs)
        ]
        ready = _wait_for_all(starts, say)
        num_oom_kills = group.group.num_oom_kills()
    figures.num_oom_kills.append(num_oom_kills)
    figures.num_failed += len(starts) - len(ready)
    if len(ready) == len(starts):
        figures.ready_s.append(max(one.at for one in ready) - begin)
    say(
        f"{case.name}: {len(ready)} of {len(starts)} runs came up, {num_oom_kills} OOM kills, "
        f"{time.monotonic() - begin:.1f} s"
    )


def _wait_for_all(starts: Sequence[Start], say: Callable[[str], None]) -> list[Ready]:
    ready = []
    for start in starts:
        try:
            ready.append(start.wait([0], _TIMEOUT_S)[1])
        except NotReadyError as error:
            say(f"{start.case.name}: {error}")
    return ready
