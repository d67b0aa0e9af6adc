"""A rank waited for the others until its time was up: what they do, before torch ends them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from launch.hang import Hang
from launch.hang_evidence import collect
from rundir.atomic import write_text
from rundir.events import read_events
from rundir.paths import RunDir

_TIMED_OUT = re.compile(r"Timed out waiting (\d+) ?ms")  # gloo's; NCCL's watchdog raises nothing
_IN_GLOO = '  File "/torch/distributed/gloo", line 0 in wait'
_CALL = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<where>.+)$', re.MULTILINE)


def look_at_others(
    run: RunDir, attempt: int, failed: Iterable[int], pids: Mapping[int, int]
) -> None:
    """Keep what every rank of this machine does, if one of those that `failed` waited in vain.

    `pids` are those of all its ranks. What a rank that has ended did last, its traceback tells.
    Raises OSError when the disk does not take it.
    """
    waited = {
        event["rank"]: event for event in read_events(run.events)
        if event["name"] == "rank.exception" and event["attempt"] == attempt
        and event["rank"] in set(failed) and _TIMED_OUT.search(event["message"])
    }  # fmt: skip
    if not waited:
        return
    timeout_s = max(_seconds(event["message"]) for event in waited.values())
    folder = collect(run, attempt, pids, Hang(still_s=timeout_s, limit_s=timeout_s))
    for rank, event in waited.items():
        path = folder / "stacks" / f"rank{rank}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _as_stack(event["traceback"]))


def _seconds(message: str) -> float:
    found = _TIMED_OUT.search(message)
    return int(found[1]) / 1000 if found else 0.0


def _as_stack(traceback: str) -> str:
    """A traceback as faulthandler would have written it: the innermost call first.

    That was one of torch's C++, which a traceback lacks.
    """
    calls = [
        f'  File "{call["file"]}", line {call["line"]} in {call["where"]}'
        for call in _CALL.finditer(traceback)
    ]
    head = "Current thread 0x0 (most recent call first):"
    return "\n".join([head, _IN_GLOO, *reversed(calls), ""])
