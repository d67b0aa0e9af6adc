"""How many threads a rank computes with on the CPU."""

from __future__ import annotations

import os


def num_threads() -> int:
    """OMP_NUM_THREADS; where that is no number, as many as there are cores, as OpenMP does."""
    try:
        return max(1, int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    except (KeyError, ValueError):
        is_linux = hasattr(os, "sched_getaffinity")
        return len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
