"""Long conversations, whose template is rendered a few times rather than for every answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from train.chat.answer_turns import THOUGHT_END
from train.chat.messages import Message
from train.chat.rendered import Answer, AnswerTurn, Rendered

FEWEST_ANSWERS = 16
_PLAIN_KEYS = {"role", "content"}
_SECRET = secrets.token_hex(8)  # no data contain it
_BEGIN, _END = f"\ufdd2{_SECRET}\ufdd3", f"\ufdd3{_SECRET}\ufdd2"


def rendered_at_once(
    messages: Sequence[Message],
    places: Sequence[int],
    exact: Callable[[int], AnswerTurn],
    write: Callable[[Sequence[Message], bool], str],
) -> Rendered | None:
    """Return a text with all answers at `places`; None if that cannot be told so.

    All is rendered once with marks around these answers. What stands between a prompt and its
    answer, and behind the answer, is known from one that `exact` renders, and must be the same for
    all; a few more are compared with `exact`. `write` renders messages, maybe with the beginning of
    an answer.
    """
    contents = [messages[place]["content"] for place in places]
    model = next((i for i, text in enumerate(contents) if text == text.strip()), None)
    if model is None or any(
        message.keys() != _PLAIN_KEYS or THOUGHT_END in message["content"] for message in messages
    ):
        return None
    marked = list(messages)
    for place, content in zip(places, contents, strict=True):
        marked[place] = messages[place] | {"content": _with_marks(content)}
    pieces = write(marked, False).replace(_END, _BEGIN).split(_BEGIN)
    text, cuts = "".join(pieces), list(accumulate(map(len, pieces)))
    if len(pieces) != 2 * len(places) + 1 or text != write(messages, False):
        return None
    turn, begin, end = exact(places[model]), cuts[2 * model], cuts[2 * model + 1]
    frame = _Frame(
        asks=turn.before.removeprefix(write(messages[: places[model]], False)),
        before=text[len(turn.before) : begin],
        behind=text[end : len(turn.text)],
    )
    answers = [
        answer
        for i, content in enumerate(contents)
        if (answer := frame.answer(text, cuts[2 * i], cuts[2 * i + 1], content)) is not None
    ]
    tried = {0, 1, len(places) // 2, len(places) - 2, len(places) - 1}
    if len(answers) == len(places) and all(
        _is_same(exact(places[i]), text, answers[i]) for i in tried
    ):
        return Rendered(text[: answers[-1].end], answers)
    return None


@dataclass(frozen=True, slots=True)
class _Frame:
    """What stands around the content of an answer: `asks`, the end of its prompt, before it."""

    asks: str
    before: str
    behind: str

    def answer(self, text: str, first: int, last: int, content: str) -> Answer | None:
        """Return the answer whose content, without outer space, lies between two places."""
        head = content[: len(content) - len(content.lstrip())]
        tail = content[len(content.rstrip()) :]
        asks, behind = self.asks + self.before, self.behind
        begins = [  # some templates strip contents
            first - len(self.before + kept)
            for kept in (head, "")
            if text.endswith(asks + kept, 0, first)
        ]
        ends = [
            last + len(kept + behind) for kept in (tail, "") if text.startswith(kept + behind, last)
        ]
        if not begins or not ends:
            return None
        return Answer(begins[0], ends[0], ((begins[0], ends[0]),))


def _is_same(turn: AnswerTurn, text: str, answer: Answer) -> bool:
    return turn.before == text[: answer.begin] and turn.text == text[: answer.end]


def _with_marks(content: str) -> str:
    core = content.strip()
    head, _, tail = content.partition(core)
    return f"{head}{_BEGIN}{core}{_END}{tail}"
