"""Ranks of real runs at the gate."""

from __future__ import annotations

import pytest

from tests.running import COLD, SERIAL, SHORT, User, events_of

_LOADING = ("--set", "launch.start=imports")  # so that the gate has something to do
_AUTO = ("--set", "launch.admit=auto")

# No rank but the first loads before the others are inside too; the first mostly waits, so there may
# be more ranks than cores.
_ALL_BUT_THE_FIRST_TOGETHER = """
import time
from pathlib import Path
load = module.load
def load_together(*args):
    Path(f"inside{os.environ['RANK']}").touch()
    if os.environ["RANK"] == "0":
        time.sleep(6)
    while os.environ["RANK"] != "0" and not all(Path(f"inside{i}").exists() for i in (1, 2, 3)):
        time.sleep(0.01)
    return load(*args)
module.load = load_together
"""


def test_with_auto_the_first_rank_is_measured_alone_and_the_others_load_together(
    user: User,
) -> None:
    env = user.hooked("train.worker", _ALL_BUT_THE_FIRST_TOGETHER)
    out = user.output_of(*SHORT, *_LOADING, *_AUTO, "--num-gpus", "4", env=env)
    admitted = {
        event["rank"]: event
        for event in events_of(user.run(), "mark", "admitted")
        if event["rank"] is not None
    }
    assert [admitted[rank]["num_beside"] for rank in range(4)] == [0, 0, 1, 2]
    assert admitted[0]["growth_bytes"] is None
    assert all(admitted[rank]["growth_bytes"] > 0 for rank in (1, 2, 3))
    assert "[Rank 3] LOCK: acquired! Starting initialization... beside 2 others" in out


@pytest.mark.long
def test_a_queue_longer_than_the_collectives_time_out_harms_nobody(user: User) -> None:
    timeout_s = 5
    slowly = (
        "import time; load = module.load\n"
        f"wait_s = {timeout_s + 4} * int(os.environ['RANK'])\n"
        "module.load = lambda *a: (time.sleep(wait_s), load(*a))[1]"
    )
    options = (*SERIAL, *COLD, "--set", f"launch.collective_timeout_s={timeout_s}")
    env = user.hooked("train.worker", slowly)
    user.output_of(*SHORT, *options, env=env)
    (waited,) = events_of(user.run(), "end", "all_loaded.wait", rank=0)
    assert waited["duration_s"] > timeout_s
