"""torch's flight recorder, which is private: what a rank's process groups have called.

Never imports torch: a script may do without. tests/test_compat.py checks the private names.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from rundir.pulse import NCCL

PRIVATE = ("torch._C:_distributed_c10d._dump_fr_trace",)  # module:attribute

_C10D = "torch._C._distributed_c10d"


# One recorder has what every process group has called but NCCL's, which are in one of their own. A
# build of torch for CPU has only the first.
_GENERAL, _OF_NCCL = "_dump_fr_trace", "_dump_nccl_trace"


def dumped_collectives(*, with_stacks: bool = True) -> list[dict[str, Any]]:
    """Return the entries of torch's flight recorders; NCCL's and the general one may share some.

    Takes up to 2 s for 2,000 entries, and at first 1.5 s of CPU time more; 1 ms without stacks.
    """
    dumps = (_dumped(name, includeStackTraces=with_stacks) for name in (_GENERAL, _OF_NCCL))
    return [entry for dump in dumps for entry in dump.get("entries", [])]


def group_counts() -> dict[str, tuple[int, int]]:
    """Return (last collective enqueued, last completed) of each process group; takes 0.1 ms.

    Both recorders count groups from 0, so those of NCCL's are named "nccl:0". Gloo completes
    collectives in several threads, so after two at once the last completed may stay one behind
    although nothing is left to do. Send and receive are counted by some backends only. NCCL's
    collectives are completed when its own thread has noticed, and no CUDA event is asked here.
    """
    counts = {}
    for recorder, prefix in ((_GENERAL, ""), (_OF_NCCL, NCCL)):
        dump = _dumped(recorder, includeCollectives=False, includeStackTraces=False)
        for name, status in dump.get("pg_status", {}).items():
            last = status["last_enqueued_collective"], status["last_completed_collective"]
            counts[f"{prefix}{name}"] = (int(last[0]), int(last[1]))
    return counts


def _dumped(recorder: str, **options: bool) -> dict[str, Any]:
    dump = getattr(sys.modules.get(_C10D), recorder, None)
    if dump is None:
        return {}
    dumped: dict[str, Any] = pickle.loads(dump(**options))  # noqa: S301 - torch's own, of this process
    return dumped
