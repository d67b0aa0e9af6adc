"""`airlock doctor --pid`: real jobs of plain torchrun, looked at from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from doctor.outside.running_job import find_job
from doctor.outside.spy import as_stack, parse, program
from tests.conftest import ROOT
from tests.forked import run_module
from tests.running import hooked, python, wait_for

NEEDS_PY_SPY = pytest.mark.skipif(program() is None, reason="py-spy is not installed")
HANGS = """import os, sys, time
import torch
import torch.distributed as dist
def rest():
    time.sleep(1000)
def work():
    for step in range(10**9):
        if "sleeps" in sys.argv and step == 3 and dist.get_rank() == 1:
            rest()
        dist.all_reduce(torch.randn(300, 300) @ torch.randn(300, 300))
        if step == 2:
            open(f"ready{dist.get_rank()}", "w").close()
dist.init_process_group("gloo")
work()
"""
SLEEPS_AT, WAITS_AT = 5, 10

Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Return what `airlock doctor --json ARGS` says."""
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def call(*args: str, **environ: str) -> dict[str, Any]:
        done = typed(*args, **environ)
        assert (done.returncode, done.stderr) == (0, "")
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    return call


def typed(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_module("launch", "doctor", "--json", *args, env={**os.environ, **environ})


@contextlib.contextmanager
def torchrun(folder: Path, *args: str) -> Iterator[dict[int, int]]:
    """Start two ranks by plain torchrun; yield their pids by rank, and torchrun's as -1."""
    (folder / "hangs.py").write_text(HANGS)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "hangs.py", *args]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("AIRLOCK_")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=clean, stdout=log, stderr=log
        )
    try:
        for rank in range(2):
            wait_for((folder / f"ready{rank}").exists, why="no rank is ready")
        ranks = find_job(process.pid).ranks
        yield {-1: process.pid, **{rank: one.pid for rank, one in ranks.items()}}
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.runs
@NEEDS_PY_SPY
def test_of_a_rank_that_sleeps_the_line_is_named_and_of_a_stopped_one_that_it_is_stopped(
    doctor: Doctor, tmp_path: Path
) -> None:
    with torchrun(tmp_path, "sleeps") as pids:
        for pid in (pids[-1], pids[0]):
            told = doctor("--pid", str(pid))
            assert (told["cause"], told["rank"]) == ("rank-behind", 1), told
            places = [(one["file"], one["line"]) for one in told["evidence"]]
            script = str(tmp_path / "hangs.py")
            assert places == [(script, SLEEPS_AT), (script, WAITS_AT)]
            assert "time.sleep(1000)" in told["evidence"][0]["text"]
            assert f"{script}:{SLEEPS_AT} in rest" in told["title"]
        os.kill(pids[1], signal.SIGSTOP)
        try:
            told = doctor("--pid", str(pids[-1]))
        finally:
            os.kill(pids[1], signal.SIGCONT)
        assert (told["cause"], told["rank"]) == ("rank-stopped", 1), told
        assert told["fix"].startswith(f"kill -CONT {pids[1]} ")


@pytest.mark.runs
def test_without_stacks_a_rank_that_sleeps_is_only_possibly_the_one(
    doctor: Doctor, tmp_path: Path
) -> None:
    denied = tmp_path / "py-spy"
    denied.write_text("#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n")
    denied.chmod(0o755)
    finds_it = f"module.program = lambda: {str(denied)!r}"
    env = hooked({"PYTHONPATH": str(ROOT)}, tmp_path, "doctor.outside.spy", finds_it)
    with torchrun(tmp_path, "sleeps") as pids:
        told = doctor("--pid", str(pids[-1]), **env)
        assert told["cause"] in ("rank-behind", "hang"), told
        assert told["confidence"] < 0.6
        assert "ptrace_scope" in told["fix"]


@pytest.mark.runs
def test_a_healthy_job_moves_and_goes_on_undisturbed(doctor: Doctor, tmp_path: Path) -> None:
    with torchrun(tmp_path) as pids:
        told = doctor("--pid", str(pids[-1]))
        assert told["cause"] == "running", told
        assert all(psutil.Process(pid).status() != psutil.STATUS_STOPPED for pid in pids.values())
        assert doctor("--pid", str(pids[1]))["cause"] == "running"
    assert "Error" not in (tmp_path / "log").read_text()


@pytest.mark.runs
@NEEDS_PY_SPY
def test_of_a_rank_alone_in_the_rendezvous_the_address_is_named(
    doctor: Doctor, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    (tmp_path / "hangs.py").write_text(HANGS.replace("dist.init", "open('begun', 'w')\ndist.init"))
    process = subprocess.Popen(
        [sys.executable, "hangs.py"], cwd=tmp_path, env={**os.environ, **ranks, **master}
    )
    try:
        wait_for((tmp_path / "begun").exists, why="it has not begun")
        told = wait_for(
            lambda: (say := doctor("--pid", str(process.pid)))["cause"] != "running" and say,
            why="it never stands",
        )
    finally:
        process.kill()
        process.wait()
    assert told["cause"] == "rendezvous", told
    assert f"127.0.0.1:{port}" in told["title"]


def test_a_process_that_is_not_there_or_no_python_is_a_mistake_in_usage(doctor: Doctor) -> None:
    del doctor  # only its environment is needed
    with subprocess.Popen(["sleep", "1000"]) as process:
        done = typed("--pid", str(process.pid))
        process.kill()
    assert done.returncode == 2
    assert f"process {process.pid} (sleep 1000) is no Python program" in done.stderr
    done = typed("--pid", str(process.pid))
    assert done.returncode == 2
    assert f"there is no process {process.pid}" in done.stderr
    assert typed("--pid", "1", "train.log").returncode == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_of_another_users_process_it_says_to_ask_as_root() -> None:
    code = """
import os, sys
from doctor.outside.running_job import find_job
from rundir.errors import UserError
os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    find_job(int(sys.argv[1]))
except UserError as error:
    print(error)
"""
    printed = python(code, str(os.getpid()))
    assert f"process {os.getpid()} is of user root, and may not be looked at" in printed
    assert f"doctor --pid {os.getpid()}" in printed


def test_a_dump_of_py_spy_is_read_main_thread_first(tmp_path: Path) -> None:
    def thread(number: int, *calls: tuple[str, int, str]) -> dict[str, Any]:
        frames = [{"filename": file, "line": line, "name": name} for file, line, name in calls]
        return {"os_thread_id": number, "frames": frames}

    torch = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    text = json.dumps(
        [
            thread(8, ("/usr/lib/python3.11/threading.py", 5, "wait")),
            thread(7, (torch, 3, "all_reduce"), (str(tmp_path / "train.py"), 187, "step")),
        ]
    )
    threads = parse(text, 7)
    assert [calls[0].where for calls in threads] == ["all_reduce", "wait"]
    stack = as_stack(threads)
    assert stack is not None
    assert stack.waits
    assert stack.where == "train.py:187 in step"  # of the working directory
    assert parse("Error", 7) == ()
