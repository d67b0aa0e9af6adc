"""The number of CPU threads that a rank computes with."""

from __future__ import annotations

import os


def num_threads() -> int:
    """Return OMP_NUM_THREADS, or the number of cores if that is not a number, as OpenMP does."""
    try:
        return max(1, int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    except (KeyError, ValueError):
        is_linux = hasattr(os, "sched_getaffinity")
        return len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
