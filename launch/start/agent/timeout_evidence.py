"""Evidence of a timeout in a collective: the stacks of all ranks, taken before torch ends them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rundir.atomic import write_text
from rundir.events import Event, parse_line
from rundir.files.reading import GrowingFile
from rundir.paths import RunDir
from state.hang import Hang
from state.hang_evidence import collect

_TIMED_OUT = re.compile(r"Timed out waiting (\d+) ?ms")  # by gloo; NCCL's watchdog raises nothing
_LAST_BYTES = 256 << 10  # of the end of a rank's events, where its exception comes last
_IN_GLOO = '  File "/torch/distributed/gloo", line 0 in wait'
_CALL = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in (?P<where>.+)$', re.MULTILINE)


def look_at_others(
    run: RunDir, attempt: int, failed: Sequence[int], pids: Mapping[int, int]
) -> None:
    """Collect the state of every rank on this machine if one of the ranks in `failed` timed out.

    `pids` holds the pids of all ranks on this machine. For a rank that has already ended, its
    traceback stands in for its stack. Raises OSError when the disk does not take the evidence.
    """
    exceptions = exceptions_of(run, attempt)
    waited = [exceptions[rank]["message"] for rank in failed if rank in exceptions]
    matches = [match for message in waited if (match := _TIMED_OUT.search(message))]
    if not matches:
        return
    timeout_s = max(int(match[1]) / 1000 for match in matches)
    folder = collect(run, attempt, pids, Hang(still_s=timeout_s, limit_s=timeout_s))
    for rank, event in exceptions_of(run, attempt).items():  # more may have raised by now
        path = folder / "stacks" / f"rank{rank}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _as_stack(event))


def exceptions_of(run: RunDir, attempt: int) -> dict[int, Event]:
    """Return the `rank.exception` event of each rank that has raised in `attempt`."""
    events = (
        event
        for path in sorted(run.events.glob("rank*.jsonl"))
        for line in GrowingFile(path, from_end_bytes=_LAST_BYTES).new_bytes().splitlines()
        if b'"rank.exception"' in line and (event := parse_line(line))
    )
    return {event["rank"]: event for event in events if event["attempt"] == attempt}


def _as_stack(event: Event) -> str:
    """Return a traceback as faulthandler would have written it, the innermost call first.

    An innermost call in gloo, which is C++, is missing from the traceback and added here.
    """
    calls = [
        f'  File "{call["file"]}", line {call["line"]} in {call["where"]}'
        for call in _CALL.finditer(event["traceback"])
    ]
    inner = [_IN_GLOO] if "gloo" in event["message"] else []
    head = "Current thread 0x0 (most recent call first):"
    return "\n".join([head, *inner, *reversed(calls), ""])
