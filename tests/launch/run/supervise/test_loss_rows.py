"""Lines about losses, also about those that are no numbers."""

from __future__ import annotations

from launch.run.supervise.loss_rows import bad_loss_line, early_stop_line, set_line


def test_a_set_whose_loss_is_no_number_has_a_line_as_well() -> None:
    event = {"set": "hard", "step": 3, "loss": "nan", "exact_match": None}
    assert set_line(event) == "hard after step 3  loss nan"


def test_an_early_end_is_told_with_the_best_evaluation() -> None:
    event = {"step": 40, "best_step": 10, "best_loss": 2.5, "num_evaluations": 3}
    text = early_stop_line(event)
    assert "after step 40" in text
    assert "2.5000 after step 10" in text


def test_a_bad_loss_is_told_with_what_is_done_about_it() -> None:
    event = {"text": "the loss is nan at step 3", "answer": "skip"}
    assert bad_loss_line(event).endswith("→ the step is skipped")
