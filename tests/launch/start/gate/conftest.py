"""Ranks that pass the gate: real processes, a folder for their gate, and their log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launch.start.gate.visits import RANK, Start


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def start(folder: Path, log: Path) -> Iterator[Start]:
    """Start a rank; all are gone after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        run: str,
        rank: int,
        stay_s: float,
        *,
        admit: str = "serial",
        mib: int = 0,
        fork: bool = False,
    ) -> subprocess.Popen[bytes]:
        arguments = [str(folder), run, str(rank), admit, str(stay_s), str(mib), str(fork), str(log)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", RANK, *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
