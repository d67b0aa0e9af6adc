"""Turns of a few seconds: what is reported for a turn is what was done in it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.tree import Tree
from benchmarks.turns import Clock, Compared, Turn, begin, speeds, take_turns

# It takes its steps in a child process, which has to be suspended too.
STEPS = r"""
import subprocess, sys
child = "import time\nwhile True: time.sleep({step_s}); print(time.monotonic(), flush=True)"
subprocess.run([sys.executable, "-c", child])
"""


class Steps:
    """Steps of a known length."""

    def __init__(self, folder: Path, step_s: float) -> None:
        folder.mkdir()
        program = STEPS.replace("{step_s}", str(step_s))
        self.tree = Tree([sys.executable, "-c", program], dict(os.environ), folder)

    def ends(self) -> list[float]:
        text = self.tree.log.read_text(encoding="utf-8")
        return [float(line) for line in text.split("\n")[:-1]]


@pytest.mark.runs
def test_a_program_steps_in_its_turns_only(tmp_path: Path) -> None:
    programs: dict[str, Steps] = {}
    clocks: dict[str, Clock] = {}
    with ExitStack() as stack:
        for name in ("one", "other"):
            programs[name] = Steps(tmp_path / name, 0.02)
            stack.enter_context(programs[name].tree)
            clocks[name] = begin(programs[name], 3, 30)
        take_turns(programs, clocks, num_turns=3, turn_s=0.3, timeout_s=30)
        num_before = [len(program.ends()) for program in programs.values()]
        time.sleep(0.3)
        assert [len(program.ends()) for program in programs.values()] == num_before
        for name, program in programs.items():
            turns, ends = clocks[name].turns, program.ends()
            assert len(turns) == 1 + 3 + 1
            assert all(any(turn.begin <= end <= turn.end for turn in turns) for end in ends)
            assert len(speeds(clocks[name], ends, [1.0] * len(ends))) == 3


def test_one_that_does_no_step_is_said(tmp_path: Path) -> None:
    late = Steps(tmp_path / "late", 60)
    with late.tree, pytest.raises(RuntimeError, match="0 of 1 steps"):
        begin(late, 1, 0.2)


def test_a_step_that_a_turn_cuts_counts_for_both_by_the_time_it_had_in_each() -> None:
    clock = Clock([Turn(0, 1), Turn(10, 12), Turn(20, 22), Turn(30, 31)])
    # After 1, 2, 4 and 6 seconds of its own time: the third step took one second in each of two
    # turns.
    ends = [1.0, 11.0, 21.0, 31.0]
    assert list(clock.at(ends)) == [1, 2, 4, 6]
    assert speeds(clock, ends, [5, 5, 8, 8]) == [pytest.approx(4.5), pytest.approx(4.0)]


def test_a_ratio_has_the_interval_of_its_pairs() -> None:
    same = Compared.of([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (same.low, same.mean, same.high) == (2.0, 2.0, 2.0)
    uneven = Compared.of([1.0, 1.1, 0.9], [1.0, 1.0, 1.0])
    assert uneven.low < 0.9 < uneven.mean < 1.1 < uneven.high
    assert Compared.of([3.0], [2.0]).mean == 1.5
