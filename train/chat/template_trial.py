"""What a chat template does with an answer, found out by a trial conversation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from rundir.errors import UserError
from train.chat.answer_turns import as_marked, opens_thought, turn_of
from train.chat.chat_template import ChatTemplate, Written
from train.chat.messages import Message

ASKED, ANSWER = "prompt", "answer"
_CHAT: list[Message] = [
    {"role": "user", "content": ASKED},
    {"role": "assistant", "content": ANSWER},
]


@dataclass(frozen=True, slots=True)
class TemplateTrial:
    """`by_marks`: the template's own marks say what has loss. `note` is for people.

    `next_marks` holds the token that ends an answer before a message of a role, if the answer has
    no end of its own.
    """

    by_marks: bool = False
    next_marks: dict[str, str] = field(default_factory=dict)
    note: str = ""


def try_out(template: ChatTemplate | None, marks: Collection[str]) -> TemplateTrial:
    """Return how a template writes an answer; `marks` are the texts of special tokens."""
    if template is None:
        return TemplateTrial(
            note="no chat template: a prompt, a new line, the response and its end"
        )
    try:
        before = template.write(_CHAT[:1], None, asks=True).text
        whole = template.write(_CHAT, None, asks=False)
        ours = turn_of(template, _CHAT, None).text[len(before) :]
    except UserError:  # reported where the template is used
        return TemplateTrial()
    by_marks, notes = False, []
    if whole.text.startswith(before):
        by_marks, about = _marked(template, whole, len(before), ours)
        notes.append(about)
    elif opens_thought(before):
        notes.append(f"prompts open a thought, as in use; an answer goes on with {ours!r}")
    ends = ours.partition(ANSWER)[2]
    next_marks = {} if any(mark in ends for mark in marks) else _next_marks(template, marks)
    if next_marks:
        notes.append(f"answers end with {next_marks['user']!r}, with which the next turn begins")
    return TemplateTrial(by_marks, next_marks, "; ".join(filter(None, notes)))


def _marked(template: ChatTemplate, whole: Written, begin: int, ours: str) -> tuple[bool, str]:
    """Return whether the template's own marks say what has loss, and a note about it."""
    if not template.has_marks:
        return False, ""
    theirs = "".join(text for text, has in as_marked(whole, begin) if has)
    if theirs == ours:
        return True, ""
    if ANSWER + ours.partition(ANSWER)[2].strip() not in theirs:
        return False, (
            f"the template marks {theirs!r} as said by the model ({{% generation %}}), without "
            f"what ends it; loss is on {ours!r}"
        )
    return True, f"loss is on what the template marks ({{% generation %}}): {theirs!r} of {ours!r}"


def _next_marks(template: ChatTemplate, marks: Collection[str]) -> dict[str, str]:
    """Return the special token that follows an answer before a message of each role.

    With some templates (GLM's) answers have no end: the model ends them with the mark of whoever
    speaks next. Nothing is returned if no such token follows either.
    """
    whole, by_role = template.write(_CHAT, None, asks=False).text, {}
    for role in ("user", "tool", "system"):
        try:
            more = template.write([*_CHAT, {"role": role, "content": ASKED}], None, asks=False).text
        except UserError:
            continue
        after = more[len(whole) :] if more.startswith(whole) else ""
        by_role[role] = max((mark for mark in marks if after.startswith(mark)), default="", key=len)
    return by_role if by_role.get("user") else {}
