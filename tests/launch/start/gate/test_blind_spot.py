"""What the gate of a container cannot see is said where it matters, and once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.start.gate.blind_spot import blind_spot
from machine.memory.host_memory import Available, HostMemory
from machine.processes.runs import all_runs

GIB = 1 << 30


def _with_memory(monkeypatch: pytest.MonkeyPatch, available_gib: int) -> None:
    now = Available(available_bytes=available_gib * GIB, total_bytes=100 * GIB, where="a test")
    monkeypatch.setattr(HostMemory, "now", lambda _self: now)


@pytest.fixture(autouse=True)
def _container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AIRLOCK_GATE_DIR", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(HostMemory, "is_limited", False)
    monkeypatch.setattr("launch.start.gate.blind_spot.all_runs", list)
    _with_memory(monkeypatch, 10)


def test_it_is_said_once_when_memory_is_short() -> None:
    said = blind_spot() or ""
    assert said.startswith("memory is short (10.0 GiB of 100.0 GiB available); ")
    assert "AIRLOCK_GATE_DIR" in said
    assert blind_spot() is None


def test_another_run_that_is_seen_makes_it_matter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _with_memory(monkeypatch, 90)
    assert blind_spot() is None
    monkeypatch.setattr("launch.start.gate.blind_spot.all_runs", all_runs)
    run = tmp_path / "20260101-000000-other-abcd"
    run.mkdir()
    program = [sys.executable, "-c", "print(1, flush=True); input()"]
    env = os.environ | {"AIRLOCK_RUN_DIR": str(run)}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, env=env, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said = blind_spot() or ""
        process.kill()
    assert said.startswith("another run is going on (")
    assert run.name in said


@pytest.mark.parametrize("why", ["a common folder", "a limit of its own"])
def test_a_container_that_shares_a_gate_or_no_memory_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    if why == "a common folder":
        monkeypatch.setenv("AIRLOCK_GATE_DIR", str(tmp_path))
    else:
        monkeypatch.setattr(HostMemory, "is_limited", True)
    assert blind_spot() is None
