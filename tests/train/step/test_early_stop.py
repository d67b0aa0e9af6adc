"""Early stopping: patience is counted over evaluations, and goes on with a resumed run."""

from __future__ import annotations

import json
import math

from train.step.guards import Patience


def seen(losses: list[float], most: int = 3) -> Patience:
    patience = Patience(most)
    for number, loss in enumerate(losses, 1):
        patience.seen(10 * number, loss)
    return patience


def test_it_runs_out_after_so_many_evaluations_without_a_better_one() -> None:
    assert not seen([3.0, 2.0, 2.5, 2.1]).is_out
    out = seen([3.0, 2.0, 2.5, 2.1, 2.0])
    assert out.is_out
    assert (out.best_step, out.best_loss) == (20, 2.0)


def test_a_better_one_begins_the_count_anew_and_no_number_is_no_better_one() -> None:
    assert not seen([3.0, 3.1, 3.2, 2.9, 3.0, 3.0]).is_out
    assert seen([3.0, math.nan, math.nan, math.nan]).is_out


def test_it_never_runs_out_if_it_is_off() -> None:
    assert not seen([1.0] * 50, most=0).is_out


def test_a_resumed_run_keeps_count_and_counts_no_evaluation_twice() -> None:
    first, second = seen([3.0, 2.0, 2.5]), Patience(3)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.state() == first.state()
    second.seen(30, 2.5)  # with which a resumed run begins
    assert second.num_since == 1
    second.restore(json.loads(json.dumps(Patience(3).state())))
    assert second.seen(10, 5.0)
