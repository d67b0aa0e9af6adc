"""A memory cgroup for a test, or the reason why none can be created here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from benchmarks.starts.memory_cgroup import MemoryCgroup, NoCgroupError, memory_cgroup


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """Create a real memory cgroup limited to `limit_bytes`; skip the test if that is impossible."""
    with contextlib.ExitStack() as stack:
        try:
            cgroup = stack.enter_context(memory_cgroup(limit_bytes))
        except NoCgroupError as error:
            pytest.skip(str(error))
        yield cgroup
