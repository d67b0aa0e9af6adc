"""SIGKILL for the daemon, again and again: nothing is lost, done twice or left running."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inbox.jobs import every_job
from tests.inbox.kill_points import environment
from tests.inbox.serving import Served, serving
from tests.running import wait_for

# What is dropped: trained well, interrupted by a failure, killed, always failing, no data at all.
PLANS: tuple[dict[str, Any], ...] = (
    {"steps": 2},
    {"steps": 2},
    {"steps": 3, "step_s": 0.1},
    {"steps": 3, "fail_at": 2},
    {"steps": 3, "die_at": 1},
    {"steps": 1, "code": 10, "save": False},
)
LIMIT = 3


class Dropper:
    """Drops files while daemons live and die; some have a name that another has, too."""

    def __init__(self, served: Served, seed: int) -> None:
        self.served, self.random = served, random.Random(seed)
        self.tokens: list[str] = []

    def drop(self) -> None:
        """Drop one file, as soon as none of its name lies there: nobody else overwrites either."""
        token = f"token-{len(self.tokens):04d}"
        plan = self.random.choice(PLANS) | {"token": token}
        name = self.random.choice(["same.jsonl", f"{token}.jsonl"])
        priority = self.random.choice(["high", "normal", "low"])
        hidden = self.served.layout.inbox / f".{token}"
        target = self.served.layout.drops()[priority] / name
        hidden.write_text(json.dumps(plan) if self.random.random() < 0.9 else f"no data: {token}")
        try:
            os.link(hidden, target)
        except FileExistsError:
            os.link(hidden, target.with_name(f"{token}.jsonl"))
        hidden.unlink()
        self.tokens.append(token)

    def some(self) -> threading.Thread:
        """Drop a few in a thread, over some tenths of a second."""

        def work() -> None:
            for _ in range(self.random.choice([1, 1, 2])):
                time.sleep(self.random.random() / 3)
                self.drop()

        thread = threading.Thread(target=work)
        thread.start()
        return thread


def round_of(served: Served, dropper: Dropper, folder: Path, kill_at: str) -> None:
    """Let a daemon live until it dies at that point, or for a random while."""
    dropping = dropper.some()
    process = served.start(env=environment(folder, kill_at=kill_at))
    wait_for(
        lambda: process.poll() is not None or _has_looked(served), why="no daemon", timeout_s=60
    )
    until = time.monotonic() + (3.0 if kill_at else dropper.random.random())
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    served.kill()
    dropping.join()


def _has_looked(served: Served) -> bool:
    try:
        state = json.loads(served.layout.state.read_text())
    except (OSError, ValueError):
        return False
    return served.process is not None and state["pid"] == served.process.pid


def let_it_finish(served: Served) -> None:
    """Let a daemon do all that is left, undisturbed, and end it."""
    served.start()

    def is_done() -> bool:
        counts = Counter(state for state, _ in every_job(served.layout))
        dropped = [path for drop in served.layout.drops().values() for path in drop.glob("*.jsonl")]
        return not dropped and not counts["queue"] and not counts["processing"]

    wait_for(is_done, why=f"{served.states()}", timeout_s=240)
    assert served.end() == ""


def assert_all_is_well(served: Served, tokens: list[str]) -> None:
    """Fail unless all promises about what was dropped are kept."""
    texts = [
        path.read_text()
        for path in served.layout.path.rglob("*")
        if path.is_file() and path.parent.name in ("data", "inbox", "high", "low", ".taken")
    ]
    places = Counter({token: sum(token in text for text in texts) for token in tokens})
    assert set(places.values()) == {1}, f"not in exactly one place: {places}"
    jobs = list(every_job(served.layout))
    assert len(jobs) == len(tokens)
    trained = Counter(name.rpartition(".")[0] for name in served.completed())
    for state, job in jobs:
        verdict = json.loads((job.folder / "verdict.json").read_text())
        assert job.num_failures <= LIMIT, job
        assert trained[job.id] == (1 if verdict["result"] == "done" else 0), (job, verdict)
        if state == "failed" and "the data set cannot" not in verdict["reason"]:
            assert job.num_failures == LIMIT, verdict
    keys = [job.key for state, job in jobs if state == "done"]
    assert len(keys) == len(set(keys))
    wait_for(lambda: not served.processes(), why="an orphan", timeout_s=20)
    assert not list(served.layout.queue.iterdir())


def points_passed(served: Served, folder: Path) -> list[str]:
    """Return each point that a daemon passes while all kinds of jobs go their ways."""
    file = folder.with_suffix(".points")
    for number, plan in enumerate(PLANS):
        served.plan(f"first{number}.jsonl", **plan)
    served.start(env=environment(folder, points=file))
    wait_for(
        lambda: Counter(served.states().values()) == {"done": 5, "failed": 1},
        why=f"{served.states()}",
    )
    served.ask("pause")
    served.ask("resume")
    served.end()
    return sorted(set(file.read_text().split()))


@pytest.mark.parametrize(
    "num_rounds",
    [
        pytest.param(20, marks=pytest.mark.runs),
        pytest.param(180, marks=[pytest.mark.long, pytest.mark.timeout(2400)]),
    ],
)
def test_killed_at_random_and_at_named_points_it_loses_nothing_and_does_nothing_twice(
    environ: dict[str, str], tmp_path: Path, num_rounds: int
) -> None:
    with serving(tmp_path / "first", environ, "not started") as served:
        points = points_passed(served, tmp_path / "hook")
    assert {point.partition(":")[0] for point in points} >= {
        "claim._move",
        "claim._name",
        "jobs.write",
        "jobs.move",
        "job_verdict.finish",
        "recorded_process.start",
        "models.point_at",
    }
    with serving(tmp_path / "second", environ, "not started") as served:
        dropper = Dropper(served, seed=num_rounds)
        for number in range(num_rounds):
            at_point = number % 2 == 0
            kill_at = points[number // 2 * 7 % len(points)] if at_point else ""
            round_of(served, dropper, tmp_path / "hook", kill_at)
        let_it_finish(served)
        assert_all_is_well(served, dropper.tokens)
