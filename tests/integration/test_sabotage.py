"""Runs really broken on purpose: the doctor and the report name each failure, and no other."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rundir.units import GIB
from tests.broken import LONG, SCRIPT, Named, ToItsEnd
from tests.cgroup_limits import few_pids, limited
from tests.conftest import mounted
from tests.running import ENDLESS, User, as_options, run_folder, wait_for, wait_until_training

FAILURES = {
    "low-address-space": Named(
        "address-space-limit",
        "Out of address space: RLIMIT_AS",
        "ulimit -v unlimited",
        "in low_address_space",
        code=11,
    ),
    "low-open-files": Named(
        "too-many-open-files", "Too many open files", "ulimit -n", "in low_open_files"
    ),
    "port-in-use": Named("port-in-use", "port is in use", "ss -ltnp", "in port_in_use"),
    "fork-after-cuda": Named(
        "cuda-fork", "CUDA was initialised before a fork", "set_start_method('spawn')", "in on_gpu"
    ),
    "partial-shard": Named(
        "weights-file-damaged",
        "A weights file is not whole",
        "hf download",
        "in partial_shard",
    ),
    "mismatched-shape": Named(
        "collective-mismatch",
        "Ranks called different collectives, or one with different shapes",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "in mismatched_shape",
    ),
}
_CHEAP = ("fork-after-cuda", "mismatched-shape")


@pytest.mark.parametrize(
    "failure", [name if name in _CHEAP else pytest.param(name, marks=LONG) for name in FAILURES]
)
def test_what_a_script_does_to_itself_is_named(to_its_end: ToItsEnd, failure: str) -> None:
    to_its_end(SCRIPT, failure).assert_named(FAILURES[failure])


@contextlib.contextmanager
def small_shm() -> Iterator[list[str]]:
    """Yield a prefix that gives a command a /dev/shm of 16 MiB, as a container has one of 64."""
    mount = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"'
    start = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    tried = subprocess.run([*start, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no small /dev/shm can be made: {tried.stderr.strip()}")
    yield start


@contextlib.contextmanager
def little_memory() -> Iterator[list[str]]:
    """Yield a prefix that starts a command in a memory cgroup of 2 GiB."""
    with limited(2 * GIB) as cgroup:
        yield cgroup.command([])


SURROUNDINGS: dict[str, tuple[Any, str, Named]] = {
    "a small /dev/shm": (
        small_shm,
        "tiny-shm",
        Named(
            "shared-memory-too-small",
            "Shared memory (/dev/shm) is too small",
            "--shm-size",
            "in tiny_shm",
        ),
    ),
    "a pids limit": (
        lambda: few_pids(250),
        "low-pids",
        Named("thread-limit", "No more threads or processes", "OMP_NUM_THREADS", "in low_pids"),
    ),
    "a memory cgroup": (
        little_memory,
        "memory",
        Named(
            "memory-guard",
            "ended by the memory guard in the script",
            "smaller batches",
            code=11,
        ),
    ),
}


@pytest.mark.parametrize(
    "name",
    ["a memory cgroup", *(pytest.param(name, marks=LONG) for name in list(SURROUNDINGS)[:-1])],
)
def test_what_a_surrounding_is_too_small_for_is_named(to_its_end: ToItsEnd, name: str) -> None:
    surrounding, failure, wanted = SURROUNDINGS[name]
    with surrounding() as start:
        end = to_its_end(SCRIPT, failure, within=start)
    end.assert_named(wanted)


def test_a_full_disk_is_named(to_its_end: ToItsEnd, small_disk: Path) -> None:
    end = to_its_end(SCRIPT, "full-disk", "--folder", str(small_disk))
    end.assert_named(Named("disk-full", "No space left on the device", "df -h", "in full_disk"))


STOPPED = Named("rank-stopped", "was stopped (SIGSTOP)", "kill -CONT")
BUILD_LOCK = Named(
    "extension-build-lock",
    "for a lock in torch_extensions",
    "rm -rf ~/.cache/torch_extensions",
    "in stale_build_lock",
)


@pytest.mark.parametrize(
    ("failure", "wanted"),
    [("sigstop", STOPPED), pytest.param("stale-build-lock", BUILD_LOCK, marks=LONG)],
)
def test_whom_a_rank_waited_for_until_its_time_was_up_is_named(
    to_its_end: ToItsEnd, tmp_path: Path, failure: str, wanted: Named
) -> None:
    end = to_its_end(SCRIPT, failure, "--timeout-s", "5", "--folder", str(tmp_path))
    end.assert_named(wanted)


def test_who_keeps_the_others_of_a_script_that_hangs_is_named(to_its_end: ToItsEnd) -> None:
    hang = as_options("launch.hang_timeout_s=5", "launch.on_hang=end")
    wanted = Named(
        "collective-mismatch", "called barrier", "look for a branch", "in uneven_data", code=12
    )
    to_its_end(*hang, SCRIPT, "uneven-data").assert_named(wanted)


def test_nothing_is_named_in_a_run_that_is_sound(user: User, to_its_end: ToItsEnd) -> None:
    end = to_its_end(SCRIPT, "scary", "--steps", "30")
    assert end.code == 0, end.out
    end.assert_nothing_named()
    logs = str(user.run().rank_log(1, 0).parent)
    assert json.loads(user.typed("doctor", "--json", logs)[1])["cause"] == "unknown"


def test_nothing_is_named_in_a_run_that_was_stopped_by_ctrl_c(
    to_its_end: ToItsEnd, environ: dict[str, str]
) -> None:
    def stop(process: subprocess.Popen[str]) -> None:
        log = run_folder(environ).rank_log(1, 0)
        wait_for(lambda: log.exists() and "step 3" in log.read_text(), why="it does not train")
        process.send_signal(signal.SIGINT)

    end = to_its_end(SCRIPT, "none", "--steps", "1000000", "--step-s", "0.05", meanwhile=stop)
    assert end.code == 21, end.out
    end.assert_nothing_named()


@LONG
@pytest.mark.parametrize("left_bytes", [0, 2 << 20])
def test_a_disk_that_is_full_when_our_own_trainer_saves_is_named(
    user: User, to_its_end: ToItsEnd, left_bytes: int
) -> None:
    def fill(_: subprocess.Popen[str]) -> None:
        wait_until_training(user.run())
        with (disk / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while shutil.disk_usage(disk).free > left_bytes:
                file.write(b"0" * 4096)

    saves = ("--set", "train.checkpoint_every_steps=40")
    with mounted(user.folder / "runs", "64m") as disk:
        end = to_its_end(*ENDLESS[1:], *saves, meanwhile=fill)
        end.assert_named(Named("disk-full", "No space left on the device", "df -h", rank=0))


def test_a_shard_that_is_not_whole_is_refused_and_named(user: User, shared_cache: Path) -> None:
    user.typed("plan", "tiny")  # makes the model, in case no test has needed it yet
    model = shutil.copytree(next((shared_cache / "models").glob("tiny-*")), user.folder / "model")
    shard = model / "model.safetensors"
    os.truncate(shard, shard.stat().st_size // 2)
    code, _, err = user.finish("run", "tiny", "--set", f"model.path={model}")
    assert (code, f"rm {shard}" in err) == (4, True), err
    (user.folder / "run.log").write_text(err)
    told = json.loads(user.typed("doctor", "--json", "run.log")[1])
    assert (told["cause"], told["evidence"][0]["line"]) == ("weights-file-damaged", 1)
