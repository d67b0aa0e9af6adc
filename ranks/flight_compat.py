"""torch's flight recorder, which is private: what a rank's process groups have called.

Never imports torch: a script may do without. tests/test_compat.py checks the private names.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

PRIVATE = ("torch._C:_distributed_c10d._dump_fr_trace",)  # module:attribute

_C10D = "torch._C._distributed_c10d"


def dumped_collectives(*, with_stacks: bool = True) -> list[dict[str, Any]]:
    """Return the entries of torch's flight recorders; NCCL's and the general one may share some.

    Takes up to 2 s for 2,000 entries, and at first 1.5 s of CPU time more; 1 ms without stacks.
    """
    entries: list[dict[str, Any]] = []
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        if (dump := getattr(sys.modules.get(_C10D), name, None)) is not None:
            entries += pickle.loads(dump(includeStackTraces=with_stacks)).get("entries", [])  # noqa: S301
    return entries


def group_counts() -> dict[str, tuple[int, int]]:
    """Return (last collective enqueued, last completed) of each process group; takes 0.1 ms.

    Gloo completes collectives in several threads, so after two at once the last completed may stay
    one behind although nothing is left to do. Send and receive are counted by some backends only.
    """
    dump = getattr(sys.modules.get(_C10D), "_dump_fr_trace", None)
    if dump is None:
        return {}
    dumped = pickle.loads(dump(includeCollectives=False, includeStackTraces=False))  # noqa: S301
    return {
        name: (int(counts["last_enqueued_collective"]), int(counts["last_completed_collective"]))
        for name, counts in dumped.get("pg_status", {}).items()
    }
