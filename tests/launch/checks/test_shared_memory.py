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
from tests.launch.checks.conftest import Machine, context, on_gpus

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


def test_no_room_even_for_a_lock_is_an_error(machine: Machine) -> None:
    (row,) = machine.rows(first="mount -t tmpfs -o size=64k none /dev/shm")["shared memory"]
    assert not row["ok"]
    assert row["text"].startswith("0 of 0 MiB of /dev/shm are free: processes cannot share even")
    assert "--shm-size=1g" in row["do"]


def test_a_folder_that_cannot_be_written_is_an_error(machine: Machine) -> None:
    (row,) = machine.rows(first="mount -t tmpfs -o ro none /dev/shm")["shared memory"]
    assert not row["ok"]
    assert row["text"].endswith("/shm cannot be written")


def test_the_64_mib_of_a_container_are_a_warning_for_ranks_on_gpus_alone(machine: Machine) -> None:
    docker = "mount -t tmpfs -o size=64m none /dev/shm"
    (row,) = machine.rows(first=docker)["shared memory"]
    assert row["warning"] == ""
    assert row["text"] == "64 of 64 MiB of /dev/shm are free"


@pytest.mark.parametrize(("num_gpus", "warns"), [(8, True), (1, False)])
def test_ranks_on_gpus_need_room_for_nccl(num_gpus: int, warns: bool) -> None:
    free_bytes = os.statvfs(SHM).f_bavail * os.statvfs(SHM).f_frsize
    if free_bytes > 1 << 30:
        with pytest.MonkeyPatch.context() as patch:  # the measurement is real, the need is not
            patch.setattr(storage, "_NCCL_BYTES", free_bytes // 4)
            (found,) = storage.check_shared_memory(context("14b", placement=on_gpus(num_gpus)))
    else:
        (found,) = storage.check_shared_memory(context("14b", placement=on_gpus(num_gpus)))
    assert bool(found.warning) == warns
    assert not warns or "NCCL may take" in found.warning


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


def test_much_of_it_is_a_warning_that_names_the_files(machine: Machine) -> None:
    left = "mount -t tmpfs -o size=512m none /dev/shm; head -c 80M /dev/zero >/dev/shm/psm_0a1b2c3d"
    (row,) = machine.rows(first=left)["shared memory"]
    assert row["ok"]
    assert "1 files in /dev/shm are of processes that are gone, 80 MiB; 432 of" in row["warning"]
    assert row["do"].startswith("rm /dev/shm/psm_0a1b2c3d   # of processes that are gone")
