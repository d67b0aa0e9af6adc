"""Lines of a run's output about losses, also about those that are no numbers."""

from __future__ import annotations

from typing import Any

import pytest

from launch.run.supervise.event_lines import plain_line
from state.run_state import new_state

BAD_LOSS = {"text": "the loss is nan at step 3", "answer": "skip"}
EARLY_STOP = {"step": 40, "best_step": 10, "best_loss": 2.5, "num_evaluations": 3}
SET = {"set": "hard", "step": 3, "loss": "nan", "exact_match": None}


@pytest.mark.parametrize(
    ("kind", "name", "fields", "line"),
    [
        ("metric", "eval.set", SET, "hard after step 3  loss nan"),
        ("metric", "eval.set", SET | {"exact_match": 0.5}, "  exact match 50.0%"),
        ("mark", "early_stop", EARLY_STOP, "after step 40: "),
        ("mark", "early_stop", EARLY_STOP, "3 evaluations; the best was 2.5000 after step 10"),
        ("mark", "loss.bad", BAD_LOSS, "airlock: the loss is nan at step 3\n  → the step is skip"),
    ],
)
def test_a_loss_has_a_line_that_says_what_is_done_about_it(
    kind: str, name: str, fields: dict[str, Any], line: str
) -> None:
    event = {"kind": kind, "name": name, **fields}
    assert line in (plain_line(new_state("run", "tiny", 1), event) or "")
