"""Tests of the watch over a plain run, which looks at a real pulse file at times that it is told.

A real training that freezes is in tests/integration/test_plain.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.run.supervise.plain_watch import FreezeWatch
from rundir.paths import RunDir
from rundir.pulse import Pulse


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.control.mkdir(parents=True)
    run.pulse(0).parent.mkdir(parents=True, exist_ok=True)
    return run


@pytest.mark.parametrize("moves_on", [True, False])
def test_a_freeze_that_ends_with_the_run_is_taken_back_and_another_is_not(
    run: RunDir, tmp_path: Path, *, moves_on: bool
) -> None:
    said: list[str] = []
    pulse = Pulse(run.pulse(0))
    pulse.stepped(1)
    with (tmp_path / "log").open("w") as log:
        watch = FreezeWatch(run, 3, log, said.append)
        for second in range(100, 500, 2):
            watch.look(float(second))
        assert len(said) == 1
        assert "stands still" in said[0]
        if moves_on:
            pulse.stepped(2)
        watch.end(500.0)
    assert [line for line in said if "moves again" in line] == said[1:]
    assert len(said) == 1 + moves_on
