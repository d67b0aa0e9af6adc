"""Real runs of two ranks, of which one is slow in one part of each step."""

from __future__ import annotations

import pytest

from tests.running import SERIAL, User, as_options, events_of

_STEPS = (
    "run",
    "tiny",
    *SERIAL,
    "--num-gpus=2",
    *as_options(
        "train.max_steps=24",
        "train.log_every_steps=3",
        "train.eval_generate=false",
        "train.global_batch_size=8",
        "data.eval_path=",
    ),
)
_SLOW = """
own = module.{what}
def slow(*args, **kwargs):
    import time
    time.sleep(1.2 if os.environ.get("RANK") in {ranks} else 0)
    return own(*args, **kwargs)
module.{what} = slow
"""
WHERE = {
    "data": ("train.batches.feed", "Feed.step"),
    "compute": ("train.model.loss", "SummedLoss.forward"),
}


def slowed(part: str, ranks: tuple[str, ...]) -> tuple[str, str]:
    """Return a module, and what to run after its import so that a part of each step is slow."""
    module, what = WHERE[part]
    return module, _SLOW.format(what=what, ranks=ranks)


@pytest.mark.long
@pytest.mark.parametrize("part", ["data", "compute"])
def test_a_rank_that_is_slower_than_the_other_is_named_with_what_it_is_slow_in(
    user: User, part: str
) -> None:
    out = user.output_of(*_STEPS, env=user.hooked(*slowed(part, ("1",))))
    warned = [line for line in out.splitlines() if "is slower than the others" in line]
    assert len(warned) == 1, out
    assert warned[0].startswith("airlock: rank 1 is slower than the others, which wait for it: ")
    assert f": {part} takes " in warned[0]
    row = next(line for line in out.splitlines() if line.startswith("  slow rank "))
    assert f"rank 1: {part} takes " in row
    told = events_of(user.run(), "metric", "train.rank")
    waits_s = {one["rank"]: one["time_wait_s"] for one in told}
    assert waits_s[0] > 1 > waits_s[1]
