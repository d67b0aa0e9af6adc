"""Shared memory that is too small, or holds what dead processes have left there."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.checks import storage
from tests.launch.checks.conftest import context, on_gpus

SHM = Path("/dev/shm")  # noqa: S108
MAKE = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 1 << 20)
kept = mmap.mmap(fd, 1 << 20)
os.close(fd)
print("made", flush=True)
input()
"""


@pytest.fixture
def name() -> Iterator[str]:
    """Yield a name that multiprocessing could have chosen; remove anything of that name."""
    chosen = f"psm_{secrets.token_hex(4)}"
    yield chosen
    (SHM / chosen).unlink(missing_ok=True)


def test_ranks_on_gpus_need_room_for_nccl() -> None:
    free_bytes = os.statvfs(SHM).f_bavail * os.statvfs(SHM).f_frsize
    too_many = free_bytes // (36 << 20) + 1  # each takes somewhat more than 36 MiB
    (found,) = storage.check_shared_memory(context("14b", placement=on_gpus(too_many)))
    assert f"NCCL may take {38_551_552 * too_many >> 20:,} for {too_many} ranks" in found.warning
    (found,) = storage.check_shared_memory(context("14b", placement=on_gpus(1)))
    assert found.warning == ""


def test_what_a_dead_process_has_left_is_stale_and_what_a_live_one_has_is_not(name: str) -> None:
    path = SHM / name
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as maker:
        assert maker.stdout is not None
        maker.stdout.readline()
        assert path not in storage.stale_files()  # mapped, though not open
        maker.kill()
    assert path in storage.stale_files()


def test_a_file_of_torchs_is_stale_when_the_process_in_its_name_is_dead() -> None:
    with subprocess.Popen(["sleep", "60"]) as lives:
        path = SHM / f"torch_{lives.pid}_{secrets.token_hex(4)}_0"
        path.touch()
        try:
            assert path not in storage.stale_files()
            lives.kill()
            lives.wait()
            assert path in storage.stale_files()
        finally:
            path.unlink()
