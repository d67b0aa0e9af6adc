"""A rank that waited for the others until it timed out: it is a victim, and reports that itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from doctor.logs.diagnosis import diagnose
from doctor.runs.hang_verdict import of_hang
from doctor.runs.run_folder import of_run
from launch.start.agent.timeout_evidence import look_at_others
from tests.conftest import ROOT
from tests.doctor.run_folders import Story

TIMED_OUT = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv "
    "operation to complete"
)


def timed_out() -> Story:
    """Return a run in which rank 0 waited in vain, and the launcher ended rank 1."""
    story = Story(script=True)
    story.raises(0, TIMED_OUT)
    story.tell("launch", "error", "rank.gone", failed_rank=0)
    story.exited(1, -9, "SIGKILL")
    story.ends()
    return story


def test_a_time_out_is_not_called_the_cause_of_itself() -> None:
    verdict = of_run(timed_out().run)
    assert (verdict.cause, verdict.role) == ("gloo-timeout", "cascade")
    assert verdict.evidence[0].text == TIMED_OUT
    assert "The root cause is not in this log" in verdict.why


def test_the_rank_that_was_waited_for_is_named_with_its_line(tmp_path: Path) -> None:
    story = timed_out()
    late = tmp_path / "late.py"
    late.write_text(
        "import sys, time\nfrom pathlib import Path\n"
        "from machine.processes.stacks import answer_in\n"
        "def look_for_data():\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "answer_in(Path(sys.argv[1]))\nlook_for_data()\n"
    )
    command = [sys.executable, str(late), str(story.run.stacks("rank1"))]
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)}) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"ready\n"
            look_at_others(story.run, 0, [0], {0: gone.pid, 1: rank.pid})
        finally:
            rank.kill()
    verdict = of_run(story.run)
    assert (verdict.cause, verdict.rank) == ("rank-behind", 1)
    assert verdict.evidence[0].file.endswith("stacks/rank1.txt")
    assert f'"{late}", line' in verdict.evidence[0].text
    assert "in look_for_data" in verdict.title
    assert "for 0:05" in verdict.why


def test_another_failure_has_nobody_looked_at() -> None:
    story = Story(script=True)
    story.raises(0, "KeyError: 'text'")
    look_at_others(story.run, 0, [0], {0: 2**22 + 2, 1: 2**22 + 3})
    assert not story.run.incident(0).exists()


def hung_at(*lines: int) -> Path:
    """Return the incident of a run whose ranks hang in an all-reduce, each at its own line."""
    folder = Story().run.incident(0)
    (folder / "stacks").mkdir(parents=True)
    rows = [
        {
            "rank": rank,
            "pid": 1,
            "state": "S",
            "stays": True,
            "waits_in": "",
            "alive_s": None,
            "count": None,
        }
        for rank in range(len(lines))
    ]
    (folder / "hang.json").write_text(json.dumps({"still_s": 9.0, "limit_s": 9.0, "ranks": rows}))
    for rank, line in enumerate(lines):
        (folder / "stacks" / f"rank{rank}.txt").write_text(
            "Current thread 0x1 (most recent call first):\n"
            '  File "/x/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
            f'  File "/home/u/train.py", line {line} in main\n'
        )
    return folder


@pytest.mark.parametrize(("lines", "late"), [((7, 7, 9), 2), ((7, 9), None)])
def test_ranks_that_wait_at_different_lines_are_in_different_collectives(
    lines: tuple[int, ...], late: int | None
) -> None:
    folder = hung_at(*lines)
    verdict = of_hang(folder)
    assert verdict is not None
    assert (verdict.cause, verdict.rank) == ("collective-mismatch", late)
    assert "train.py:7 in main" in verdict.why
    assert "train.py:9 in main" in verdict.why


def test_where_all_ranks_wait_alike_the_way_between_them_is_to_be_checked() -> None:
    folder = hung_at(7, 7)
    verdict = of_hang(folder)
    assert verdict is not None
    assert (verdict.cause, verdict.rank) == ("hang", None)
    assert "./airlock check collectives" in verdict.fix


def test_where_each_rank_waited_is_told_from_a_log_alone(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f'[rank{rank}]:   File "/home/u/train.py", line {line}, in main\n'
            f"[rank{rank}]:     work.wait()\n"
            f"[rank{rank}]: {TIMED_OUT}\n"
            for rank, line in ((0, 7), (1, 9))
        )
    )
    verdict = diagnose([str(log)])
    assert verdict.cause == "gloo-timeout"
    code = "/home/u/train.py, line"
    assert f"rank 0 at {code} 7, in main; rank 1 at {code} 9, in main" in verdict.why


def _waits(rank: int, line: int, calls: str) -> dict[str, object]:
    """Return the row of a rank whose stacks did not come in time, but whose watchdog has told."""
    return {
        "rank": rank,
        "pid": 100 + rank,
        "state": "S",
        "stays": True,
        "alive_s": 0.4,
        "can_answer": True,
        "at": {"file": "/x/train.py", "line": line, "function": "main"},
        "calls": calls,
        "waits_s": 30.0,
        "count": None,
    }


def test_lines_come_from_the_watchdogs_where_stacks_have_not_come_in_time(tmp_path: Path) -> None:
    rows = [_waits(0, 30, "all_reduce"), _waits(1, 34, "all_gather")]
    told = {"still_s": 33.0, "limit_s": 30.0, "ranks": rows}
    (tmp_path / "hang.json").write_text(json.dumps(told, indent=1))
    verdict = of_hang(tmp_path)
    assert verdict is not None
    assert verdict.cause == "collective-mismatch"
    assert "all_reduce at /x/train.py:30 in main" in verdict.title
    assert "all_gather at /x/train.py:34 in main" in verdict.title
    assert {one.file for one in verdict.evidence} == {"hang.json"}


def test_a_rank_that_could_not_have_written_its_stacks_has_no_line_of_its_watchdog(
    tmp_path: Path,
) -> None:
    rows = [_waits(0, 30, "all_reduce"), _waits(1, 34, "") | {"can_answer": False, "state": "T"}]
    told = {"still_s": 33.0, "limit_s": 30.0, "ranks": rows}
    (tmp_path / "hang.json").write_text(json.dumps(told, indent=1))
    verdict = of_hang(tmp_path)
    assert verdict is not None
    assert (verdict.cause, verdict.rank) == ("rank-stopped", 1)
