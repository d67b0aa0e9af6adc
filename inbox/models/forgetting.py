"""Whether a model may become the current one: what it has forgotten, by its held-out losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inbox.models.held_out_scores import Score

# Nats a label token. Below this a rise is noise: of a set that is all but learnt by heart, the loss
# doubles from one training to the next, and no answer changes.
NEGLIGIBLE_RISE = 0.01


def is_worse(before: Score, after: Score, forgetting: float) -> bool:
    """Return whether a loss has risen by more than the share `forgetting` of what it was.

    A rise of at most NEGLIGIBLE_RISE is none. A loss that is no number is worse than any other.
    """
    if after.loss is None:
        return True
    if before.loss is None:
        return False
    return after.loss - before.loss > max(NEGLIGIBLE_RISE, forgetting * before.loss)


def objections(
    own: str | None,
    sets: Sequence[str],
    before: Mapping[str, Score],
    after: Mapping[str, Score],
    forgetting: float,
) -> list[str]:
    """Return why a model is not to become the current one: a phrase for each set it is worse on."""
    reasons = []
    for name in sets:
        if name not in after:
            reasons.append(f"{name} was not scored")
        elif is_worse(before.get(name, Score(loss=None)), after[name], forgetting):
            what = "its own held-out rows" if name == own else "an earlier set"
            reasons.append(f"worse on {name}, {what}: {change(before.get(name), after[name])}")
    return reasons


def change(before: Score | None, after: Score) -> str:
    """Return how a loss has changed, in words: 0.412 to 0.633, +54 %."""
    now = "no number" if after.loss is None else f"{after.loss:.3f}"
    if before is None or before.loss is None or after.loss is None:
        return f"held-out loss {now}"
    share = f", {after.loss / before.loss - 1:+.0%}" if before.loss > 0 else ""
    return f"held-out loss {before.loss:.3f} to {now}{share}"
