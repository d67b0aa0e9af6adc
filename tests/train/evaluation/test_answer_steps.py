"""Tests of the steps at which answers are kept, and of the time that they may take."""

from __future__ import annotations

import pytest

from train.evaluation.answer_tracker import Budget, scheduled


def test_answers_are_due_often_at_first_and_then_every_thousand_steps() -> None:
    assert list(scheduled(0, 300)) == [0, 10, 25, 50, 100, 150, 200, 250, 300]
    assert list(scheduled(0, 4500))[-5:] == [1500, 2000, 3000, 4000, 4500]


def test_a_run_that_goes_on_has_answers_where_it_begins_and_where_it_ends() -> None:
    assert list(scheduled(120, 260)) == [120, 150, 200, 250, 260]
    assert list(scheduled(400, 400)) == [400]


def _taken(cost_s: float, step_s: float, num_steps: int, share: float = 0.02) -> list[int]:
    budget, found, due = Budget(share), [], list(scheduled(0, num_steps))
    for number, step in enumerate(due):
        if budget.takes(len(due) - number, step * step_s, step / num_steps):
            budget.spent(cost_s)
            found.append(step)
    return found


@pytest.mark.parametrize("cost_s", [0.01, 0.1, 0.3, 1.0, 5.0])
def test_all_answers_take_their_share_at_most_but_for_the_first_and_the_last(cost_s: float) -> None:
    taken = _taken(cost_s, step_s=0.1, num_steps=1000)
    assert taken[0] == 0
    assert taken[-1] == 1000
    assert len(taken) == 2 or len(taken) * cost_s <= 0.02 * 100


def test_with_time_enough_none_is_left_out_and_with_less_they_are_spread() -> None:
    assert _taken(0.01, step_s=1.0, num_steps=1000) == list(scheduled(0, 1000))
    some = _taken(0.4, step_s=0.1, num_steps=1000)  # five of eleven
    assert len(some) == 5
    assert some[1] < 200 < some[-2]
