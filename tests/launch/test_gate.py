"""The gate with real processes that take it, wait for it and die in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.gate import Gate, gate_folder
from rundir.errors import UserError
from tests.conftest import ROOT
from tests.running import wait_for

# A rank that passes the gate: writes when it got in and when it left, and stays inside a while.
RANK = """
import os, sys, time
from pathlib import Path
from launch.gate import Gate
folder, run, rank, stay_s, log = sys.argv[1:]
def say(text):
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{text} {run} {rank}\\n".encode())
def on_wait(reminder):
    say("waits" if not reminder else "reminded " + reminder.replace(" ", "_"))
gate = Gate(Path(folder), run_id=run, who=f"rank {rank}", turn=int(rank), timeout_s=60,
            on_wait=on_wait)
say("here")
with gate.admitted():
    say("in")
    time.sleep(float(stay_s))
    say("out")
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(folder: Path, log: Path, run: str, rank: int, stay_s: float) -> subprocess.Popen[bytes]:
    arguments = [str(folder), run, str(rank), str(stay_s), str(log)]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", RANK, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def said(log: Path, word: str) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if line.startswith(word + " ")]


def test_two_runs_of_four_ranks_are_never_inside_together_and_keep_rank_order(
    folder: Path, log: Path, ranks: list[subprocess.Popen[bytes]]
) -> None:
    for rank in (3, 1, 2, 0):  # the order they come in is not the order they are admitted in
        ranks.extend(start(folder, log, run, rank, 0.05) for run in ("a", "b"))
    assert [process.wait(60) for process in ranks] == [0] * 8
    passages = [line for line in log.read_text().splitlines() if line.startswith(("in", "out"))]
    for entered, left in zip(passages[::2], passages[1::2], strict=True):
        assert entered.replace("in ", "out ") == left
    for run in ("a", "b"):
        assert [line for line in passages if f"in {run}" in line] == [
            f"in {run} {rank}" for rank in range(4)
        ]


def test_a_holder_that_is_killed_frees_the_gate_for_the_next_rank(
    folder: Path, log: Path, ranks: list[subprocess.Popen[bytes]]
) -> None:
    ranks.append(start(folder, log, "a", 0, 1000))
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    ranks.append(start(folder, log, "a", 1, 0))
    wait_for(lambda: said(log, "waits"), why="rank 1 did not wait")
    ranks[0].kill()
    assert ranks[1].wait(30) == 0


def test_a_rank_killed_while_it_waits_is_skipped(
    folder: Path, log: Path, ranks: list[subprocess.Popen[bytes]]
) -> None:
    ranks.append(start(folder, log, "a", 0, 2))
    wait_for(lambda: said(log, "in"), why="rank 0 did not get in")
    ranks.extend(start(folder, log, "a", rank, 0) for rank in (1, 2))
    wait_for(lambda: len(said(log, "waits")) == 2, why="ranks 1 and 2 did not wait")
    os.kill(ranks[1].pid, signal.SIGKILL)
    assert ranks[2].wait(30) == 0


def test_who_waits_can_read_who_holds_the_gate_in_which_phase(folder: Path) -> None:
    gate = Gate(folder, run_id="r", who="rank 5", turn=0, timeout_s=1, on_wait=lambda _: None)
    with gate.admitted():
        gate.phase("loading")
        holder = gate.holder()
    assert holder is not None
    assert (holder["run"], holder["who"], holder["pid"]) == ("r", "rank 5", os.getpid())
    assert holder["phase"] == "loading"
    assert abs(holder["since_t"] - time.time()) < 60


def test_a_wait_that_is_too_long_ends_with_the_name_of_the_holder(folder: Path, log: Path) -> None:
    holder = start(folder, log, "other", 0, 1000)
    try:
        wait_for(lambda: said(log, "in"), why="the holder did not get in")
        gate = Gate(folder, run_id="r", who="rank 0", turn=0, timeout_s=0.3, on_wait=lambda _: None)
        with pytest.raises(TimeoutError, match=f"rank 0 of other, pid {holder.pid}, admitted"):
            gate.admitted().__enter__()
    finally:
        holder.kill()
        holder.wait()


def test_a_torn_or_missing_holder_file_is_nobody(folder: Path) -> None:
    gate = Gate(folder, run_id="r", who="rank 0", turn=0, timeout_s=1, on_wait=lambda _: None)
    assert gate.holder() is None
    (folder / "gate.holder.json").write_text('{"run": "x", ')
    assert gate.holder() is None


def test_the_gate_is_free_again_after_an_exception_inside(folder: Path) -> None:
    def passage() -> Gate:
        return Gate(folder, run_id="r", who="rank 0", turn=0, timeout_s=1, on_wait=lambda _: None)

    with pytest.raises(RuntimeError), passage().admitted():
        raise RuntimeError
    with passage().admitted():
        pass


@pytest.mark.parametrize("kind", ["a link", "a file", "open to others"])
def test_a_gate_folder_that_is_not_ours_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "folder"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "a file":
        path.touch()
    else:
        path.mkdir()
        path.chmod(0o770)
    monkeypatch.setenv("AIRLOCK_GATE_DIR", str(path))
    with pytest.raises(UserError, match="the gate cannot use"):
        gate_folder()


def test_the_folder_is_made_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRLOCK_GATE_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert gate_folder() == tmp_path / "airlock"
    assert gate_folder().stat().st_mode & 0o777 == 0o700


def test_one_without_a_turn_waits_for_nobodys_and_leaves_none(folder: Path) -> None:
    first = Gate(folder, run_id="r", who="rank 0", turn=0, timeout_s=1, on_wait=lambda _: None)
    alone = Gate(folder, run_id="r", who="zygote", turn=None, timeout_s=1, on_wait=lambda _: None)
    with alone.admitted():
        holder = alone.holder()
    assert holder is not None
    assert holder["who"] == "zygote"
    assert not (folder / "turns").exists()
    with first.admitted():
        pass
