"""Waits of a script's ranks: shown as a fact, warned of if they cannot end, taken back if wrong."""

from __future__ import annotations

import json
import re
import signal

import pytest

from doctor.runs.hang_verdict import of_hang
from rundir.paths import RunDir
from rundir.status import read_status
from tests.running import User, ended, events_of, finish, wait_for
from tests.scripts import JOIN, script

_SOON = ("--set", "launch.hang_timeout_s=4")
_LEAVES = f"""{JOIN}
import signal, threading, time
signal.signal(signal.SIGUSR2, lambda *_: print("mine", flush=True))
if rank == 0:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    sys.exit()  # where it leaves
dist.all_reduce(torch.ones(1))
"""
_DIFFER = f"""{JOIN}
one = torch.ones(1)
if rank == 0:
    dist.broadcast(one, 0)
    dist.broadcast(one, 1)
dist.all_reduce(one)
"""
_LATE = f"""{JOIN}
import time
if rank == 0:
    time.sleep(15)
for _ in range(5):
    time.sleep(1)
    dist.barrier()
"""
_MEET = """
import os, time
import torch.distributed as dist
rank = int(os.environ["RANK"])
{first}
dist.init_process_group("gloo", rank=rank, world_size={num})
"""


def _hang(user: User, path: str) -> tuple[RunDir, str]:
    """Let a script hang until it is warned of; return the run, and who was said to wait."""
    with ended(user.airlock("run", *_SOON, "--num-gpus", "2", path)) as process:
        run = user.run()
        wait_for(lambda: events_of(run, "error", "hang"), why="no hang was said")
        assert process.poll() is None
        waiting = wait_for(lambda: read_status(run)["waiting"], why="nobody is said to wait")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        finish(process)
    return run, waiting


def test_a_rank_that_waits_for_one_that_has_left_is_told_with_its_line_and_left_alone(
    user: User,
) -> None:
    path = script(user.folder, _LEAVES)
    run, waiting = _hang(user, path)
    (event,) = events_of(run, "error", "hang")
    assert (event["failed_rank"], event["ends"]) == (0, False)
    assert "my_train.py:" in event["title"]
    assert "mine" not in run.rank_log(1, 0).read_text()  # the script's own handler was not called
    line = 1 + _LEAVES.splitlines().index("    sys.exit()  # where it leaves")
    assert waiting.startswith("rank 1 has waited ")
    assert waiting.endswith(f"for rank 0, which has finished and left at my_train.py:{line}")
    gone, waits = json.loads((run.incident(0) / "hang.json").read_text())["ranks"]
    assert (gone["left"]["how"], gone["left"]["line"]) == ("exited", line)
    assert (waits["calls"], waits["at"]["file"], waits["left"]) == ("all_reduce", path, None)
    records = json.loads((run.incident(0) / "flight" / "rank1.json").read_text())
    assert records[-1]["name"] == "all_reduce"


@pytest.mark.parametrize(
    ("first", "num"),
    [
        ("if rank == 1: time.sleep(1000)", 2),
        pytest.param("", 3, marks=pytest.mark.long),
    ],
)
def test_of_ranks_that_meet_in_vain_the_address_and_the_number_they_expect_are_told(
    user: User, first: str, num: int
) -> None:
    run, _ = _hang(user, script(user.folder, _MEET.format(first=first, num=num)))
    rows = json.loads((run.incident(0) / "hang.json").read_text())["ranks"]
    told = [re.fullmatch(r"\S+:\d+ \(world size (\d)\)", one.get("store", "")) for one in rows]
    assert [one and int(one[1]) for one in told] == ([2, None] if num == 2 else [3, 3])
    verdict = of_hang(run.incident(0))
    assert verdict is not None
    assert f"to meet at {rows[0]['store']}" in f"{verdict.title} {verdict.why}"


@pytest.mark.long
def test_ranks_in_different_collectives_are_told_to_wait_for_each_other(user: User) -> None:
    # The script lies where libraries do, and its lines are told all the same.
    run, waiting = _hang(user, script(user.folder / "site-packages", _DIFFER))
    assert waiting.startswith("all ranks have waited ")
    assert "rank 0 waits in broadcast at site-packages/my_train.py:" in waiting
    assert "rank 1 waits in all_reduce at site-packages/my_train.py:" in waiting
    (event,) = events_of(run, "error", "hang")
    assert event["cause"] == "collective-mismatch"


@pytest.mark.long
def test_a_warning_of_ranks_that_go_on_is_taken_back(user: User) -> None:
    path = script(user.folder, _LATE)
    out = user.output_of("run", *_SOON, "--num-gpus", "2", path)
    run = user.run()
    assert len(events_of(run, "error", "hang")) == len(events_of(run, "mark", "hang.over")) == 1
    assert out.index("airlock: no progress for ") < out.index("the warning above is taken back")
