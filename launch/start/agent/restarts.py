"""The restarts after a failure: none that would end the same way, and one more that would not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace

from rundir.config_file import read_config
from rundir.errors import UserError
from rundir.events import Event, EventWriter
from rundir.paths import RunDir
from rundir.prepared import read_prepared, write_prepared

_GPU_IS_FULL = "OutOfMemoryError"  # torch's; where the host is full it raises others
_IN_STEP, _IN_EVALUATION = "/train/step/", "/train/evaluation/"  # in the lines of a traceback


class Restarts:
    """What the failures of one run say about its restarts."""

    def __init__(self, run: RunDir, events: EventWriter) -> None:
        self._run, self._events = run, events
        self._num_added = 0

    def after(self, attempt: int, left: int) -> tuple[int, int]:
        """Return how many restarts to make of those `left` after `attempt`, and how many more."""
        # No start should wait for this import.
        from launch.start.agent.timeout_evidence import exceptions_of

        exceptions = exceptions_of(self._run, attempt)
        for rank, event in exceptions.items() if left else ():
            if event["exception"] == UserError.__name__:  # only other data or settings mend that
                self._events.emit("mark", "restart.none", failed_rank=rank)
                return 0, 0
        num_more = 0
        with contextlib.suppress(OSError):  # a script has no plan; a full disk takes no choice
            num_more = int(self._recompute_more(exceptions))
        self._num_added += num_more
        return left, num_more

    def _recompute_more(self, exceptions: Mapping[int, Event]) -> bool:
        """Have more blocks recomputed if a GPU had too little memory for a step; return whether.

        Their number must be the plan's choice (model.gradient_checkpointing=auto): its estimate was
        too low, or the memory is in pieces. First half of the other blocks are added, then all.
        """
        full = [rank for rank, event in exceptions.items() if _is_full_in_step(event)]
        if not full or read_config(self._run.config).model.gradient_checkpointing != "auto":
            return False
        prepared = read_prepared(self._run)
        if prepared.recomputed is True:
            return False
        plan = json.loads(self._run.plan.read_text(encoding="utf-8"))
        num_blocks = plan["rank"]["num_blocks"]
        half = (int(prepared.recomputed) + num_blocks + 1) // 2
        num = half if half < num_blocks and not self._num_added else True
        write_prepared(self._run, replace(prepared, recomputed=num))
        self._events.emit("mark", "restart.recompute", failed_rank=full[0], recomputed=num)
        return True


def _is_full_in_step(event: Event) -> bool:
    lines = event["traceback"]
    return event["exception"] == _GPU_IS_FULL and _IN_STEP in lines and _IN_EVALUATION not in lines
