"""One answer as a chat template writes it, and the prompt that a served model gets before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rundir.errors import ExitCode, UserError
from train.chat.chat_template import ChatTemplate, NotWrittenError, Written
from train.chat.messages import Message, reasoning_of
from train.chat.rendered import AnswerTurn, Part

THOUGHT, THOUGHT_END = "<think>", "</think>"  # templates omit what precedes the end in old answers
OWN_TEMPLATE = (
    "--set data.chat_template=FILE, that of a model of its family, or a training template of it "
    "(TRL has some: trl/chat_templates/*_training.jinja); or another model"
)


def turn_of(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: list[Any] | None,
    *,
    by_marks: bool = False,
    end: str = "",
) -> AnswerTurn:
    """Return all text before the last message, which is an answer, and that message's parts.

    `by_marks`: the template's own marks say what has loss. `end` is put behind the answer. Raises
    UserError for what the template cannot write.
    """
    for name, what in (("tool_calls", "calls of tools"), ("tools", "tools")):
        has = tools if name == "tools" else any(name in message for message in messages)
        if has and not template.writes(name):
            raise unwritable(f"does not write {what}")
    before = template.write(messages[:-1], tools, asks=True).text
    whole = template.write(messages, tools, asks=False)
    ending: list[Part] = [(end, True)] if end else []
    thought = thought_of(messages[-1])
    if not whole.text.startswith(before):
        answer = _after_thought(before, whole.text, thought, template)
        return AnswerTurn(before, [(answer, True), *ending])
    answer = whole.text[len(before) :]
    if thought.strip() not in answer:
        raise unwritable("leaves out the thoughts of the answer that is trained")
    if by_marks:
        parts = as_marked(whole, len(before))
        if any(has_loss for _, has_loss in parts):
            return AnswerTurn(before, [*parts, *ending])
    return AnswerTurn(before, [(answer, True), *ending])


def thought_of(message: Message) -> str:
    """Return the thought of an answer, given beside its content or in it; "" without one."""
    inside = str(message["content"]).rpartition(THOUGHT_END)[0].rpartition(THOUGHT)[2]
    return inside or reasoning_of(message)


def opens_thought(before: str) -> bool:
    """Return whether a prompt ends with the beginning of a thought, which the answer continues."""
    return before.rstrip().endswith(THOUGHT)


def _after_thought(before: str, whole: str, thought: str, template: ChatTemplate) -> str:
    """Return the answer to a prompt that opens a thought, if the template writes it otherwise.

    Some templates ask with an opened thought, but write answers without: DeepSeek-R1's leave the
    thought out, Nemotron's close an empty one at once. A served model gets the opened one.
    """
    head = before.rstrip().removesuffix(THOUGHT)
    if not opens_thought(before) or not whole.startswith(head):
        if THOUGHT_END in before and thought:
            options = "--set data.template_options=enable_thinking=true"
            raise UserError(
                "this model's chat template asks for an answer without thoughts, and this has some",
                do=options if template.mentions("enable_thinking") else OWN_TEMPLATE,
                code=ExitCode.DATA,
            )
        raise NotWrittenError(
            "this model's chat template changes the prompt once an answer follows it",
            do=OWN_TEMPLATE,
            code=ExitCode.DATA,
        )
    rest = whole[len(head) :]
    if rest.startswith(THOUGHT):
        answer = rest.removeprefix(THOUGHT).lstrip("\n")
        if thought.strip() not in answer:
            raise unwritable("leaves out the thoughts of the answer that is trained")
        return answer
    thought = thought.lstrip("\n") if before.endswith("\n") else thought
    between = "" if rest.startswith("\n") else "\n\n"
    return f"{thought.rstrip()}\n{THOUGHT_END}{between}{rest}"


def as_marked(whole: Written, begin: int) -> list[Part]:
    """Return the text from `begin` on, in parts; the marked ones have loss."""
    parts: list[Part] = []
    done = begin
    for marked, end in whole.marked:
        start = max(marked, done)  # a mark may begin within the generation prompt
        if end > start:
            parts += [(whole.text[done:start], False), (whole.text[start:end], True)]
            done = end
    parts.append((whole.text[done:], False))
    return [part for part in parts if part[0]]


def unwritable(what: str) -> UserError:
    """Return the error for what a template cannot write."""
    return UserError(f"this model's chat template {what}", do=OWN_TEMPLATE, code=ExitCode.DATA)
