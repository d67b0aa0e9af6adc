"""Limits of a test by control groups, on memory or processes, or why none can be set here."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.starts.memory_cgroup import MemoryCgroup, NoCgroupError, memory_cgroup

_CGROUPS = Path("/sys/fs/cgroup")
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


@contextlib.contextmanager
def few_pids(most: int) -> Iterator[list[str]]:
    """Yield a prefix that runs a command in a real cgroup of at most `most` processes and threads.

    The test is skipped where none can be created; that takes root.
    """
    folder = _own_folder() / f"airlock-{os.getpid()}-{secrets.token_hex(2)}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text(str(most), encoding="ascii")
        start = ["sh", "-c", _ENTER, str(folder)]
        subprocess.run([*start, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no pids cgroup can be made: {error}")
    try:
        yield start
    finally:
        folder.rmdir()  # nothing of the run may be left in it


def _own_folder() -> Path:
    """Return this process's group, of the pids controller or of cgroup v2."""
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            return _CGROUPS / "pids" / path.lstrip("/")
    return _CGROUPS


@contextlib.contextmanager
def limited(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """Create a real memory cgroup limited to `limit_bytes`; skip the test if that is impossible."""
    with contextlib.ExitStack() as stack:
        try:
            cgroup = stack.enter_context(memory_cgroup(limit_bytes))
        except NoCgroupError as error:
            pytest.skip(str(error))
        yield cgroup
