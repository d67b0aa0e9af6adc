"""Rows of the report about losses: bad ones, an early end, and evaluation that is off."""

from __future__ import annotations

from collections.abc import Iterator

from rundir.config_file import read_config
from rundir.events import Event
from rundir.paths import RunDir
from rundir.units import loss_text
from state.run_state import RunState

_MOST_STEPS = 5
_ANSWERS = {
    "warn": "said, and trained on",
    "skip": "left out: they have changed no weight",
    "rollback": "gone back from, and left out",
}


def bad_loss_line(event: Event) -> str:
    """Return the line about a loss that is no number, or has jumped."""
    done = {
        "warn": "train.on_bad_loss=warn: it goes on; skip, rollback or stop would not train on it",
        "skip": "the step is skipped",
        "rollback": "back to the last checkpoint, and on without this step",
        "stop": "the run ends",
    }[event["answer"]]
    return f"airlock: {event['text']}\n  → {done}"


def set_line(event: Event) -> str:
    """Return the line about a named set that was evaluated."""
    match_ = event["exact_match"]
    exact = "" if match_ is None else f"  exact match {match_:.1%}"
    return f"{event['set']} after step {event['step']}  loss {loss_text(event['loss'])}{exact}"


def early_stop_line(event: Event) -> str:
    """Return the line about a run that ends early."""
    return (
        f"stopped early after step {event['step']}: the held-out loss has not improved for "
        f"{event['num_evaluations']} evaluations; the best was {loss_text(event['best_loss'])} "
        f"after step {event['best_step']}"
    )


def loss_rows(run: RunDir, state: RunState) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of what is notable."""
    for answer, done in _ANSWERS.items():
        steps = [str(loss["step"]) for loss in state.bad_losses if loss["answer"] == answer]
        if steps:
            more = f" and {len(steps) - _MOST_STEPS} more" if len(steps) > _MOST_STEPS else ""
            yield "bad losses", f"step {', '.join(steps[:_MOST_STEPS])}{more}: {done}"
    if state.early_stop:
        yield "stopped early", early_stop_line(state.early_stop).partition(": ")[2]
    for name, (first, last) in state.sets.items():
        match_ = last["exact_match"]
        exact = "" if match_ is None else f", exact match {match_:.1%}"
        yield name, f"loss {loss_text(first['loss'])} → {loss_text(last['loss'])}{exact}"
    if not _evaluates(run):
        yield "held-out loss", "not measured: train.evaluate is false"


def _evaluates(run: RunDir) -> bool:
    try:
        config = read_config(run.config)
    except (OSError, ValueError):
        return True
    return config.script is not None or config.train.evaluate
