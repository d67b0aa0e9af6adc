"""The climb on more examples and ranks stops where it breaks, and says how to see just that."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.running import User, output_of

_HANGS = """
sum_ = module.Ranks.sum
def stuck(self, values):
    import time
    while self.rank == 1:
        time.sleep(0.1)
    return sum_(self, values)
module.Ranks.sum = stuck
"""
_PATIENT = ("--timeout-s", "550")


def rows(path: Path, num: int, broken: int | None = None) -> Path:
    made = [{"prompt": f"upper ab{row}", "response": f"AB{row}"} for row in range(num)]
    if broken is not None:
        del made[broken]["response"]
    path.write_text("".join(json.dumps(one) + "\n" for one in made))
    return path


def test_data_that_break_at_row_500_stop_it_at_a_thousand_examples(user: User) -> None:
    data = rows(user.folder / "mine.jsonl", 1200, broken=500)
    args = ("check", "--climb", "tiny", "--data", str(data), *_PATIENT)
    out = user.output_of(*args, code=4, timeout_s=500)
    states = [line.split() for line in out.splitlines() if line.startswith(("ok ", "FAIL "))]
    assert [(state[0], " ".join(state[3:])) for state in states] == [
        ("ok", "2 examples, 1 rank"),
        ("ok", "100 examples, 1 rank"),
        ("FAIL", "1,000 examples, 1 rank"),
    ]
    assert "it stops at 1,000 examples, 1 rank: " in out
    assert "mine.jsonl:501" in out
    assert "not reached: all examples, 1 rank; all examples, 2 ranks" in out
    assert not list(Path(user.environ["AIRLOCK_RUNS_DIR"]).iterdir())  # each in a folder of its own
    again = next(line for line in out.splitlines() if "# exactly that step" in line)
    words = shlex.split(again.partition("→ ")[2], comments=True)
    assert words[1] == "tiny"
    err = user.error_of("run", *words[1:], code=5)
    assert "mine.jsonl:501" in err


@pytest.mark.long
def test_a_rank_that_hangs_stops_it_at_two_ranks_and_is_named(user: User) -> None:
    env = user.hooked("ranks.group", _HANGS)
    data = rows(user.folder / "mine.jsonl", 8)
    few = ("--data", str(data), "--set", "data.max_samples=2", "--num-gpus", "4")
    soon = ("--set", "launch.hang_timeout_s=4", *_PATIENT)
    process = user.airlock("check", "--climb", "tiny", *few, *soon, "--json", env=env)
    out = output_of(process, code=4, timeout_s=500)
    told = json.loads(out)
    assert told["ok"] is False
    assert [(one["num_ranks"], one["ok"]) for one in told["steps"]] == [(1, True), (2, False)]
    assert "rank 1" in told["steps"][1]["text"]
    assert "--num-gpus 2" in told["steps"][1]["again"]
    assert "data.max_samples=2" in told["steps"][1]["again"]
    assert told["not_reached"] == ["2 examples, 4 ranks"]
