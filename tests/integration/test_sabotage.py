"""Runs broken on purpose, for real: the doctor and the report name each failure, and no other."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from launch.memory import GIB
from tests.conftest import ROOT
from tests.memory_cgroup import limited
from tests.pids_cgroup import few_pids
from tests.running import (
    ENDLESS,
    assert_nothing_left,
    ended,
    finish,
    hooked,
    run_folder,
    wait_for,
)

Start = Callable[..., "subprocess.Popen[str]"]
SCRIPT = str(ROOT / "tests" / "sabotage.py")
OPEN = ("--set", "launch.admit=open")
LONG = pytest.mark.long


@dataclass(frozen=True, slots=True)
class Named:
    """What must be said of a failure, by the doctor and at the run's end."""

    cause: str
    report: str
    fix: str  # a part of the command that is to be typed
    own: str = ""  # the line of the script's own that the evidence names
    rank: int | None = 1
    code: int = 10


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, and what the doctor says of it; paths are told from `folder`."""

    code: int
    out: str
    told: dict[str, Any]
    folder: Path

    def assert_named(self, wanted: Named) -> None:
        """Fail unless report and doctor say what is wanted, and show where it stands."""
        told = self.told
        assert (told["cause"], told["rank"], self.code) == (wanted.cause, wanted.rank, wanted.code)
        first, *more = told["evidence"]
        lines = (self.folder / first["file"]).read_text(encoding="utf-8").splitlines()
        assert first["text"].rstrip("…") in lines[first["line"] - 1]
        assert any(wanted.own in one["text"] for one in (first, *more)), told["evidence"]
        assert wanted.fix in told["fix"]
        report = re.split(r"(?m)^airlock: the run (?:failed|hung): ", self.out)[-1]
        assert wanted.report in report
        assert wanted.fix in report

    def assert_nothing_named(self) -> None:
        """Fail if the doctor or the report name a failure."""
        told = self.told
        assert (told["cause"], told["rank"], told["evidence"]) == ("unknown", None, [])
        assert "airlock: the run" not in self.out


Ended = Callable[..., End]


@pytest.fixture
def to_its_end(airlock: Start, environ: dict[str, str], tmp_path: Path) -> Ended:
    """Runs `airlock run ARGS` to its end; `meanwhile` is called with it when it has begun."""

    def run(
        *args: str, env: dict[str, str] | None = None, within: Sequence[str] = (),
        meanwhile: Callable[[subprocess.Popen[str]], None] = lambda _: None,
    ) -> End:  # fmt: skip
        with ended(airlock("run", *OPEN, *args, env=env, within=within)) as process:
            meanwhile(process)
            code, out, err = finish(process, timeout_s=120)
        assert_nothing_left(run_folder(environ))
        told = finish(airlock("doctor", "--json"))
        assert (told[0], told[2]) == (0, ""), err
        return End(code, out, json.loads(told[1]), tmp_path)

    return run


FAILURES = {
    "sigkill": Named("killed-by-sigkill", "killed by SIGKILL", "journalctl -k"),
    "low-address-space": Named(
        "address-space-limit", "Out of address space: RLIMIT_AS", "ulimit -v unlimited",
        "in low_address_space", code=11,
    ),
    "low-open-files": Named(
        "too-many-open-files", "Too many open files", "ulimit -n", "in low_open_files"
    ),
    "port-in-use": Named("port-in-use", "port is in use", "ss -ltnp", "in port_in_use"),
    "fork-after-cuda": Named(
        "cuda-fork", "CUDA was initialised before a fork", "set_start_method('spawn')",
        "in on_gpu",
    ),
    "partial-shard": Named(
        "weights-file-damaged", "A weights file is not whole", "hf download",
        "in partial_shard",
    ),
    "mismatched-shape": Named(
        "collective-mismatch", "Ranks called different collectives, or one with different shapes",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
}  # fmt: skip
_CHEAP = ("sigkill", "low-address-space", "port-in-use", "fork-after-cuda", "mismatched-shape")


@pytest.mark.parametrize(
    "failure", [name if name in _CHEAP else pytest.param(name, marks=LONG) for name in FAILURES]
)
def test_what_a_script_does_to_itself_is_named(to_its_end: Ended, failure: str) -> None:
    to_its_end(SCRIPT, failure).assert_named(FAILURES[failure])


@contextlib.contextmanager
def small_shm() -> Iterator[list[str]]:
    """What starts a command with a /dev/shm of 16 MiB, as in a container that has 64."""
    mount = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"'
    start = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    tried = subprocess.run([*start, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no small /dev/shm can be made: {tried.stderr.strip()}")
    yield start


@contextlib.contextmanager
def little_memory() -> Iterator[list[str]]:
    """What starts a command in a memory cgroup of 1 GiB."""
    with limited(GIB) as cgroup:
        yield cgroup.command([])


_NO_GUARD = ("--set", "limits.guard_gib=0")
SURROUNDINGS: dict[str, tuple[Any, tuple[str, ...], str, Named]] = {
    "a small /dev/shm": (
        small_shm, (), "tiny-shm",
        Named("shared-memory-too-small", "Shared memory (/dev/shm) is too small", "--shm-size",
              "in tiny_shm"),
    ),
    "a pids limit": (
        lambda: few_pids(150), (), "low-pids",
        Named("thread-limit", "No more threads or processes", "OMP_NUM_THREADS", "in low_pids"),
    ),
    "a memory cgroup": (
        little_memory, (), "memory",
        Named("memory-guard", "ended by the memory guard", "smaller batches", code=11),
    ),
    "a memory cgroup without the guard": (
        little_memory, _NO_GUARD, "memory",
        Named("host-oom-killed", "killed by the kernel's OOM killer", "--set launch.admit=serial",
              code=11),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["a small /dev/shm", "a pids limit", "a memory cgroup",
     pytest.param("a memory cgroup without the guard", marks=LONG)],
)  # fmt: skip
def test_what_a_surrounding_is_too_small_for_is_named(to_its_end: Ended, name: str) -> None:
    surrounding, options, failure, wanted = SURROUNDINGS[name]
    with surrounding() as start:
        end = to_its_end(*options, SCRIPT, failure, within=start)
    end.assert_named(wanted)


def test_a_full_disk_is_named(to_its_end: Ended, small_disk: Path) -> None:
    end = to_its_end(SCRIPT, "full-disk", "--folder", str(small_disk))
    end.assert_named(Named("disk-full", "No space left on the device", "df -h", "in full_disk"))


_WAITS = "keeps the others waiting: "
HANGS = {
    "sleep": Named("rank-behind", _WAITS, "look at that line", "in sleep"),
    "sigstop": Named("rank-stopped", "was stopped (SIGSTOP)", "kill -CONT"),
    "gil-deadlock": Named("rank-behind", _WAITS, "look at that line", "in gil_deadlock"),
    "stale-build-lock": Named(
        "extension-build-lock", "for a lock in torch_extensions",
        "rm -rf ~/.cache/torch_extensions", "in stale_build_lock",
    ),
    "uneven-data": Named(
        "collective-mismatch", "has ranks that wait in different collectives", "drop_last=True",
        "in uneven_data", rank=None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "failure",
    ["sigstop", "stale-build-lock",
     *(pytest.param(name, marks=LONG) for name in ("sleep", "gil-deadlock", "uneven-data"))],
)  # fmt: skip
def test_whom_a_rank_waited_for_until_its_time_was_up_is_named(
    to_its_end: Ended, tmp_path: Path, failure: str
) -> None:
    end = to_its_end(SCRIPT, failure, "--timeout-s", "5", "--folder", str(tmp_path))
    end.assert_named(HANGS[failure])


_HANG = ("--set", "launch.hang_timeout_s=5", "--set", "launch.on_hang=end")


@pytest.mark.parametrize(
    "failure",
    ["uneven-data", *(pytest.param(name, marks=LONG) for name in HANGS if name != "uneven-data")],
)
def test_who_keeps_the_others_of_a_script_that_hangs_is_named(
    to_its_end: Ended, tmp_path: Path, failure: str
) -> None:
    end = to_its_end(*_HANG, SCRIPT, failure, "--folder", str(tmp_path))
    end.assert_named(replace(HANGS[failure], code=12))


# What the script does to itself, done to our own trainer, in the midst of a step.
_BROKEN = f"""
import pathlib, runpy
one_step = module.Trainer._one_step
def broken(trainer):
    if trainer._step == 2 and os.environ["RANK"] == "1":
        runpy.run_path({SCRIPT!r})["FAILURES"][os.environ["FAILURE"]](pathlib.Path())
    return one_step(trainer)
module.Trainer._one_step = broken
"""
IN_TRAINER = {
    "sigkill": FAILURES["sigkill"],
    "low-address-space": FAILURES["low-address-space"],
    "fork-after-cuda": FAILURES["fork-after-cuda"],
    "sleep": replace(
        HANGS["sleep"], report="did not enter all_reduce", code=12, fix="look at that line"
    ),
    "sigstop": replace(HANGS["sigstop"], code=12),
    "gil-deadlock": Named(
        "gil-held", "holds the GIL in C code", "look at the call", "in gil_deadlock", code=12
    ),
    "uneven-data": Named(
        "collective-mismatch", "called barrier", "look for a branch", "in uneven_data",
        code=12,
    ),
}  # fmt: skip


@LONG
@pytest.mark.parametrize("failure", IN_TRAINER)
def test_what_breaks_our_own_trainer_is_named(
    to_its_end: Ended, environ: dict[str, str], tmp_path: Path, failure: str
) -> None:
    env = hooked(environ, tmp_path, "train.loop", _BROKEN) | {"FAILURE": failure}
    end = to_its_end(*ENDLESS[1:], "--set", "launch.hang_timeout_s=8", env=env)
    end.assert_named(IN_TRAINER[failure])


@pytest.mark.parametrize(
    "control", [pytest.param("none", marks=LONG), pytest.param("slow", marks=LONG), "scary"]
)
def test_nothing_is_named_in_a_run_that_is_sound(
    to_its_end: Ended, airlock: Start, environ: dict[str, str], control: str
) -> None:
    end = to_its_end(SCRIPT, control, "--steps", "30")
    assert end.code == 0, end.out
    end.assert_nothing_named()
    logs = str(run_folder(environ).rank_log(1, 0).parent)
    assert json.loads(finish(airlock("doctor", "--json", logs))[1])["cause"] == "unknown"


def test_nothing_is_named_in_a_run_that_was_stopped_by_ctrl_c(
    to_its_end: Ended, environ: dict[str, str]
) -> None:
    def stop(process: subprocess.Popen[str]) -> None:
        log = run_folder(environ).rank_log(1, 0)
        wait_for(lambda: log.exists() and "step 3" in log.read_text(), why="it does not train")
        process.send_signal(signal.SIGINT)

    end = to_its_end(SCRIPT, "none", "--steps", "1000000", "--step-s", "0.05", meanwhile=stop)
    assert end.code == 21, end.out
    end.assert_nothing_named()
