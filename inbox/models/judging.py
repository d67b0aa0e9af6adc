"""One model under consideration: kept, scored beside what was before, and judged in one line."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inbox.models.descent import Descent, Line
from inbox.models.held_out import HeldOutSet, HeldOutSets
from inbox.models.held_out_scores import Score, Scorer, ScoringFailedError

_UNKNOWN = Score(loss=None)
# Nats a label token. Below this a rise is noise: of a set that is all but learnt by heart, the loss
# doubles from one training to the next, and no answer changes.
NEGLIGIBLE_RISE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The model of a job, and where it comes from."""

    job_id: str
    name: str  # of what was dropped
    content_hash: str
    run: Path
    start: str  # the model that the training began with: a folder, or a model of the Hub
    model: Path
    own: HeldOutSet | None  # what was held out of its data


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Judges candidates by the held-out losses of their own set, and of the current model's."""

    forgetting: float
    descent: Descent
    sets: HeldOutSets
    scorer: Scorer
    current: Path | None

    @property
    def _line_of_current(self) -> Line | None:
        return None if self.current is None else self.descent.of(self.current.name)

    def judge(self, candidate: Candidate) -> Line:
        """Return the candidate's line of descent; computes for as long as evaluations take.

        Raises StoppedError.
        """
        names = self._deciding(candidate)
        try:
            before, base, after = self._scores(candidate, names)
        except ScoringFailedError as error:
            reason = f"the model is kept as {candidate.job_id}, and not made current: {error}"
            return self.line(candidate, names, is_current=False, reason=reason)
        own = None if candidate.own is None else candidate.own.name
        against = objections(own, names, before, after, self.forgetting)
        if against:
            limit = f"the limit is {self.forgetting:+.0%}"
            reason = (
                f"kept as {candidate.job_id}, and not made current: {'; '.join(against)} ({limit})"
            )
        elif own is None:
            reason = "made current; nothing was held out of its data, so nothing tells how good"
        else:
            reason = f"made current: on {own}, {change(before.get(own), after[own])}"
        scores = {name: _figures(name, before, base, after) for name in names}
        return self.line(candidate, names, is_current=not against, reason=reason, scores=scores)

    def line(
        self,
        candidate: Candidate,
        names: list[str],
        *,
        is_current: bool,
        reason: str,
        scores: Mapping[str, Mapping[str, float]] | None = None,
    ) -> Line:
        """Return a line of descent; without scores and not current, nothing is decided yet."""
        parent = self._parent(candidate)
        learnt = [] if parent is None else parent["trained_on"]
        return {
            "job": candidate.job_id,
            "name": candidate.name,
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
            "t": time.time(),
            "from": candidate.start if parent is None else parent["job"],
            "base": self._base_of(candidate),
            "run": str(candidate.run),
            "trained_on": [
                *learnt,
                {"name": candidate.name, "content_hash": candidate.content_hash},
            ],
            "is_decided": bool(scores) or is_current,
            "is_current": is_current,
            "reason": reason,
            "forgetting": self.forgetting,
            "sets": names,
            "scores": scores or {},
        }

    def _deciding(self, candidate: Candidate) -> list[str]:
        """Return the names of the sets that decide: those of the current model, and its own."""
        line = self._line_of_current
        names = None if line is None else line["sets"]
        if self.current is None:
            names = []  # and one without a line was put there by hand: it may know any of them
        own = [] if candidate.own is None else [candidate.own.name]
        earlier = [held_out.name for held_out in self.sets.named(names)]
        return [*(name for name in earlier if name not in own), *own]

    def _scores(
        self, candidate: Candidate, names: list[str]
    ) -> tuple[dict[str, Score], dict[str, Score], dict[str, Score]]:
        """Return the scores before the training, of the base, and after it, by set."""
        sets, own = self.sets.named(names), [] if candidate.own is None else [candidate.own]
        after = self.scorer.scores(str(candidate.model), sets)
        if self.current is None:
            base = self.scorer.scores(self._base_of(candidate), own)
            return base, base, after
        base = self.scorer.scores_if_any(self._base_of(candidate), own)
        known = _afterwards(self._line_of_current)
        others = [held_out for held_out in sets if held_out.name not in known]
        return known | self.scorer.scores(str(self.current), others), base, after

    def _parent(self, candidate: Candidate) -> Line | None:
        """Return the line of the model that the training began with, if it is one of ours."""
        start = Path(candidate.start)
        return self.descent.of(start.name) if start.parent == candidate.model.parent else None

    def _base_of(self, candidate: Candidate) -> str:
        parent = self._parent(candidate)
        return candidate.start if parent is None else str(parent["base"])


def _afterwards(line: Line | None) -> dict[str, Score]:
    """Return the scores that a model had after its training: they do not change."""
    return {
        name: Score(loss=score["after"], exact_match=score.get("exact_match"))
        for name, score in ({} if line is None else line["scores"]).items()
        if "after" in score
    }


def _figures(
    name: str, before: Mapping[str, Score], base: Mapping[str, Score], after: Mapping[str, Score]
) -> dict[str, float]:
    """Return the scores on one set as they are written; what is not known is left out."""
    last = after.get(name, _UNKNOWN)
    figures = {
        "before": before.get(name, _UNKNOWN).loss,
        "base": base.get(name, _UNKNOWN).loss,
        "after": last.loss,
        "exact_match": last.exact_match,
    }
    return {key: value for key, value in figures.items() if value is not None}


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
