"""Disks, shared memory and a localhost that a run cannot do with; real ones, each small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.checks.conftest import Machine

_UP = "ip link set lo up"  # in a new network namespace it is down
_NO_NAMES = """
mount -t tmpfs none /mnt
: >/mnt/empty
echo 'hosts: files' >/mnt/names
mount --bind /mnt/empty /etc/hosts
mount --bind /mnt/empty /etc/resolv.conf
mount --bind /mnt/names /etc/nsswitch.conf
"""
# What is done to a machine, and its findings: the check (and the folder it is about), the level,
# the text and the advice, or parts of them.
MACHINES = {
    "all of it too small": (
        """
        mount -t tmpfs -o size=64k none /dev/shm
        mount -t tmpfs -o size=30m none runs
        mount -t tmpfs -o size=1m none small
        head -c 900K /dev/zero >small/f
        export TMPDIR=$PWD/small
        """,
        f"""
        shared memory | error | 0 of 0 MiB of /dev/shm are free: processes cannot | --shm-size=1g
        disk: runs | error | 30 MiB are free for HERE/runs (tmpfs); 2 checkpoints | AIRLOCK_RUNS_DIR
        disk: runs | error | the trained model take 37 | keep fewer checkpoints
        disk: small | error | temporary files take 1 | free some
        localhost | error | no connection to | {_UP}
        """,
    ),
    "nothing to be written, and no names": (
        f"{_UP}{_NO_NAMES}mount -t tmpfs -o ro none /dev/shm; mount -t tmpfs -o ro none runs",
        """
        shared memory | error | /shm cannot be written | chmod 1777
        disk: runs | error | HERE/runs is on a read-only filesystem (tmpfs) | AIRLOCK_RUNS_DIR
        localhost | error | the name localhost does not resolve here | 127.0.0.1 localhost
        """,
    ),
    "no inodes, and files of dead processes": (
        f"""{_UP}
        mount -t tmpfs -o nr_inodes=8 none runs
        for n in 1 2 3 4 5 6 7; do : >runs/$n; done
        mount -t tmpfs -o size=512m none /dev/shm
        head -c 80M /dev/zero >/dev/shm/psm_0a1b2c3d
        """,
        """
        disk: runs | error | all 8 inodes of its filesystem are in use | free some
        shared memory | warning | 1 files in /dev/shm are of processes that are gone, 80 MiB; 432 of
        shared memory | warning | processes that are gone | rm /dev/shm/psm_0a1b2c3d   # of process
        localhost | ok | answers
        """,
    ),
    "as a container is": (  # NCCL needs room for ranks on GPUs alone
        "mount -t tmpfs -o size=64m none /dev/shm; mount -t tmpfs -o size=60m none runs",
        """
        shared memory | ok | 64 of 64 MiB of /dev/shm are free
        disk: runs | ok | 60 MiB are free
        """,
    ),
}


@pytest.mark.parametrize("case", MACHINES)
def test_what_a_machine_lacks_is_said_with_what_to_do(
    machine: Machine, tmp_path: Path, case: str
) -> None:
    first, expected = MACHINES[case]
    for name in ("runs", "small"):
        (tmp_path / name).mkdir()
    found = machine.rows(first=f"cd '{tmp_path}'\n{first}")
    for line in expected.strip().splitlines():
        what, level, text, do = [*map(str.strip, line.split(" | ")), ""][:4]
        check, _, folder = what.partition(": ")
        about = str(tmp_path / folder)
        (row,) = [row for row in found[check] if not folder or row["figures"]["folder"] == about]
        assert (row["ok"], bool(row["warning"])) == (level != "error", level == "warning"), line
        assert text.replace("HERE", str(tmp_path)) in (row["warning"] or row["text"])
        assert do in row["do"]
