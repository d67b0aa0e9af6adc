"""The text of a sample, and its answers: where each prompt ends, and what has loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Part = tuple[str, bool]  # text, and whether it has loss


class AnswerTurn(NamedTuple):
    """All text before an answer, as a served model gets it, and the answer in parts."""

    before: str
    answer: list[Part]

    @property
    def text(self) -> str:
        """The text up to the end of the answer."""
        return self.before + "".join(text for text, _ in self.answer)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's place in a text, in characters: `begin` is where its prompt, as served, ends."""

    begin: int
    end: int
    loss: tuple[tuple[int, int], ...]  # the ranges with loss


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a sample, and those of its answers that are trained, in order."""

    text: str
    answers: Sequence[Answer]


def joined(turns: Sequence[AnswerTurn]) -> Rendered | None:
    """Return one text of all turns; None if a turn does not go on from the text before it."""
    text, answers = "", []
    for turn in turns:
        if not turn.before.startswith(text):
            return None
        answers.append(_answer(len(turn.before), turn.answer))
        text = turn.text
    return Rendered(text, answers)


def apart(turns: Sequence[AnswerTurn]) -> list[Rendered]:
    """Return a text for each turn."""
    return [Rendered(turn.text, [_answer(len(turn.before), turn.answer)]) for turn in turns]


def segments_text(segments: Sequence[Part]) -> Rendered:
    """Return the text of consecutive segments; each with loss is an answer to all before it."""
    text, answers = "", []
    for segment, has_loss in segments:
        if has_loss:
            answers.append(_answer(len(text), [(segment, True)]))
        text += segment
    return Rendered(text, answers)


def _answer(begin: int, parts: Sequence[Part]) -> Answer:
    loss, at = [], begin
    for text, has_loss in parts:
        if has_loss and text:
            loss.append((at, at + len(text)))
        at += len(text)
    return Answer(begin, at, tuple(loss))
