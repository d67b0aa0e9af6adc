"""A rank that has left before others came to its end: they lose their connection, and fail."""

from __future__ import annotations

import re
from pathlib import Path

from doctor.logs.tracebacks import is_own
from doctor.logs.verdict import Verdict, written_verdict
from rundir.paths import RunDir, shown
from rundir.pulse import read_pulse
from state.run_state import RunState

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<where>.+)$', re.MULTILINE)
_CUT_OFF = ("nccl-remote-process-exited", "gloo-timeout")


def left_early(run: RunDir, state: RunState, verdict: Verdict) -> Verdict | None:
    """Return the verdict on a run that failed because a rank had left; None if none had."""
    root = state.root_failure()
    if root is None or root.traceback is None or verdict.cause not in _CUT_OFF:
        return None
    for row in state.status.ranks:
        pulse = read_pulse(run.pulse(row.rank))
        left = None if pulse is None or pulse.attempt != state.status.attempt else pulse.left
        if left is None or left.how == "raised" or left.code or row.rank == root.rank:
            continue
        calls = [frame for frame in _FRAME.finditer(root.traceback) if is_own(frame["file"])]
        at = f" at {shown(Path(calls[-1]['file']))}:{calls[-1]['line']}" if calls else ""
        how = " by sys.exit" if left.how == "exited" else ""
        return written_verdict(
            "run.left_early",
            {
                "rank": row.rank,
                "left": f"{how} at {shown(Path(left.file))}:{left.line}",
                "root": root,
                "at": at,
            },
            rank=row.rank,
            evidence=verdict.evidence,
        )
    return None
