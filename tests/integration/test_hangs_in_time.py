"""Hangs with the limits that users have: what is shown after half a minute, what is warned of."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.running import User, ended, events_of, finish, wait_for, waiting_in

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SCRIPT = str(Path(__file__).parents[1] / "hanging.py")
_WAITING_S, _STALLED_S = 30.0, 300.0  # as documented


class Hung:
    """What is said of a script from its first wait to the warning, after which it is ended."""

    def __init__(self, user: User, case: str) -> None:
        with ended(user.airlock("run", "--num-gpus", "2", SCRIPT, case)) as process:
            self.run = user.run()
            self.waiting = wait_for(
                lambda: waiting_in(self.run), why="no wait is shown", timeout_s=500.0
            )
            self.at_first = user.diagnosis(self.run.path)
            self.ps = user.typed("ps")[1]
            self.event = wait_for(
                lambda: events_of(self.run, "error", "hang"), why="no warning", timeout_s=600.0
            )[0]
            self.told = user.diagnosis(self.run.path)
            for _ in range(2):
                process.send_signal(signal.SIGINT)
            self.out = finish(process)[1]

    def title(self) -> str:
        """Return the warning on the console."""
        (line,) = [one for one in self.out.splitlines() if "no progress for " in one]
        return line


def test_a_wait_for_a_rank_that_may_be_busy_is_shown_soon_and_warned_of_after_five_minutes(
    user: User,
) -> None:
    hung = Hung(user, "sleeps")
    assert re.fullmatch(
        r"rank 0 has waited 0:\d\d for rank 1, which .* at \S*hanging.py:\d+", hung.waiting
    )
    assert "rank 0 has waited " in hung.ps
    assert hung.at_first["cause"] == "running"
    assert hung.at_first["confidence"] < 1
    assert "may be well" in hung.at_first["title"]
    assert hung.event["cause"] == "rank-behind"
    assert hung.event["limit_s"] == _STALLED_S
    assert hung.told["cause"] == "rank-behind"
    assert "hanging.py:" in hung.title()


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("ends-but-for-a-thread", "rank-left"),
        ("different-collectives", "collective-mismatch"),
    ],
)
def test_a_rank_that_can_never_come_is_warned_of_as_soon_as_a_wait_is_shown(
    user: User, case: str, cause: str
) -> None:
    hung = Hung(user, case)
    assert (hung.event["cause"], hung.told["cause"]) == (cause, cause)
    assert hung.event["limit_s"] == _WAITING_S
    assert "hanging.py:" in hung.title()
