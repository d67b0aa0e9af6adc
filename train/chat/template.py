"""Conversations as written by the model's own chat template, and which parts of them have loss."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rundir.errors import ExitCode, UserError
from train.chat.answer_turns import OWN_TEMPLATE, THOUGHT_END, turn_of, unwritable
from train.chat.chat_template import CALLS, ChatTemplate, NotWrittenError
from train.chat.long_chats import FEWEST_ANSWERS, rendered_at_once
from train.chat.messages import ChatExample, Message
from train.chat.rendered import AnswerTurn, Rendered, apart, joined
from train.chat.template_files import find_templates, special_tokens
from train.chat.template_trial import ANSWER, ASKED, try_out

_PLAIN = ("user", "assistant")  # the only roles possible without a template
_SKIP = "--set data.on_bad_row=skip   # leaves such rows out, and lists them"


@dataclass(frozen=True, slots=True)
class Rendering:
    """The texts of a conversation, one or several, and what was done about its answers."""

    texts: list[Rendered]
    num_unasked: int = 0  # answers that have no loss, as no prompt asks for them
    has_own_end: bool = False  # an answer came with the end mark that the template writes


class Template:
    """Turns conversations into text."""

    def __init__(
        self,
        model_path: Path,
        own: str = "",
        options: Mapping[str, Any] | None = None,
        marks: Collection[str] = (),
    ) -> None:
        """Read the template of a local model folder, or the file `own`.

        A model without one gets plain text. `marks` are the texts of the tokenizer's special
        tokens. Raises UserError for an invalid template.
        """
        self._tokens = special_tokens(model_path)
        source, with_tools = find_templates(model_path, own)
        self._template = None if source is None else ChatTemplate(source, self._tokens, options)
        self._with_tools = self._template
        if with_tools is not None:
            self._with_tools = ChatTemplate(with_tools, self._tokens, options)
        known = [
            template for template in (self._template, self._with_tools) if template is not None
        ]
        for name in options or {}:
            if known and not any(template.mentions(name) for template in known):
                raise UserError(
                    f"data.template_options has {name!r}, which the chat template does not use",
                    do="a name that stands in it, such as enable_thinking; or leave it out",
                    code=ExitCode.USAGE,
                )
        tried = try_out(self._template, marks)
        self._by_marks, self._next_marks, self.note = tried.by_marks, tried.next_marks, tried.note
        self._own_end = self._end_of_trial().strip()

    def writes(self, name: str) -> bool:
        """Return whether what messages have under `name` gets into the text."""
        return any(
            template and template.writes(name) for template in (self._template, self._with_tools)
        )

    def render(self, prompt: str, response: str) -> tuple[str, str]:
        """Return (text before the answer, the answer including its end mark)."""
        question = {"role": "user", "content": prompt}
        turn = self._turn([question, {"role": "assistant", "content": response}], None)
        return turn.before, turn.text[len(turn.before) :]

    def conversation(self, chat: ChatExample) -> Rendering:
        """Return the texts that a conversation makes.

        There is one if the template only appends from turn to turn. Some templates (Qwen3's)
        rewrite earlier turns: then there is one for each answer, with what came before it as the
        model would see it, and loss on that answer alone. Raises UserError for what the template
        cannot write.
        """
        messages = [self._without_own_end(message) for message in chat.messages]
        pairs = zip(messages, chat.messages, strict=True)
        has_own_end = any(message is not original for message, original in pairs)
        try:
            texts, num_unasked = self._texts(replace(chat, messages=messages))
        except NotWrittenError as error:
            if odd := _odd_order(messages):
                what = f"{odd}; this model's chat template does not write that: {error.args[0]}"
                raise UserError(what, do=_SKIP, code=ExitCode.DATA) from error
            raise
        return Rendering(texts, num_unasked, has_own_end)

    def before_answer(self, messages: list[Message]) -> str:
        """Return the text that asks for an answer to the last message, as in the training data.

        Without a template the last message stands alone: nothing would tell who speaks. Raises
        UserError for what the template cannot write.
        """
        if self._template is None:
            return f"{messages[-1]['content']}\n"
        return self._template.write(messages, None, asks=True).text

    def after_answer(self) -> str:
        """Return what follows an answer: its end mark, and what else the template writes there."""
        return self.render(ASKED, ANSWER)[1].partition(ANSWER)[2]

    def leading_ids(self, tokenizer: Any, *, of_text: bool = False) -> list[int]:
        """Return the ids to put before plain text: the BOS that the tokenizer would add, or none.

        A chat template writes its own; `of_text` is for text without a template.
        """
        bos_id = tokenizer.token_to_id(self._tokens["bos_token"] or "")
        if (self._template is not None and not of_text) or bos_id is None:
            return []
        return [bos_id] if tokenizer.encode("a").ids[0] == bos_id else []

    def text_end_id(self, tokenizer: Any) -> int | None:
        """Return the id that ends a text without a template: EOS; None if there is none."""
        end_id: int | None = tokenizer.token_to_id(self._tokens["eos_token"] or "")
        return end_id

    def ends_text(self, text: str) -> bool:
        """Return whether a text has the end of a text already, as rendered templates do."""
        end = self._tokens["eos_token"]
        return bool(end) and text.rstrip().endswith(end)

    def _texts(self, chat: ChatExample) -> tuple[list[Rendered], int]:
        """Return the texts of a conversation, and how many answers nothing asks for."""
        messages = chat.messages
        trained = [place for place in chat.answers if place not in chat.without_loss]
        # A greeting has no prompt: it is context, unless there is nothing else.
        prompted = [place for place in trained if _is_prompted(messages, place)] or trained
        whole = self._at_once(chat, prompted)
        turns: list[AnswerTurn] = []
        for place in prompted if whole is None else ():
            try:
                turns.append(self._turn(messages[: place + 1], chat.tools, messages[place + 1 :]))
            except NotWrittenError:
                if messages[place - 1]["role"] != "assistant" or not (
                    turns or place < prompted[-1]
                ):
                    raise  # else it is context: the template asks for one answer in a row alone
        self._check_roles(chat)
        if whole is None:
            whole = joined(turns)
        num_trained = len(turns) or len(prompted)
        return apart(turns) if whole is None else [whole], len(trained) - num_trained

    def _at_once(self, chat: ChatExample, prompted: Sequence[int]) -> Rendered | None:
        """Return the text of a long conversation, without rendering it for each answer."""
        template, messages = self._template, chat.messages
        if template is None or len(prompted) < FEWEST_ANSWERS or chat.tools:
            return None
        if (
            self._by_marks
            or self._next_marks
            or any("tool_calls" in message for message in messages)
        ):
            return None
        return rendered_at_once(
            messages[: prompted[-1] + 1],
            prompted,
            lambda place: self._turn(messages[: place + 1], None),
            lambda some, asks: template.write(some, None, asks=asks).text,
        )

    def _turn(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None,
        following: Sequence[Message] = (),
    ) -> AnswerTurn:
        """Return the prompt and the answer that the last of `messages` is."""
        template = self._with_tools if tools else self._template
        if template is None:
            return self._plainly(messages, tools)
        role = "tool" if "tool_calls" in messages[-1] else "user"
        role = following[0]["role"] if following else role
        end = self._next_marks.get(role, "")
        return turn_of(template, messages, tools, by_marks=self._by_marks, end=end)

    def _plainly(self, messages: Sequence[Message], tools: list[Any] | None) -> AnswerTurn:
        """Return prompt, newline, response and end: without a template nothing else is possible."""
        has_calls = any("tool_calls" in message for message in messages)
        if tuple(message["role"] for message in messages) != _PLAIN or tools or has_calls:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                "this model has no chat template, so nothing would tell who speaks in a "
                f"conversation of {roles}",
                do=OWN_TEMPLATE,
                code=ExitCode.DATA,
            )
        prompt, answer = (message["content"] for message in messages)
        return AnswerTurn(prompt + "\n", [(answer + self._tokens["eos_token"], True)])

    def _without_own_end(self, message: Message) -> Message:
        """Return an answer without the end mark that the template will write again."""
        end, text = self._own_end, message["content"].rstrip()
        if not end or message["role"] != "assistant" or not text.endswith(end):
            return message
        kept = text.removesuffix(end)
        return message | {"content": kept} if kept.strip() else message

    def _check_roles(self, chat: ChatExample) -> None:
        """Raise UserError if the template omits a message, as some do with some roles.

        Tried once for each sequence of roles: a short message may occur elsewhere by chance.
        """
        template = self._with_tools if chat.tools else self._template
        if template is None:
            return
        roles = [
            CALLS if "tool_calls" in message and not message["content"] else message["role"]
            for message in chat.messages
        ]
        is_written = template.writes_roles(roles)
        if is_written:
            return
        text = template.write(chat.messages, chat.tools, asks=False).text
        for place, turn in enumerate(chat.messages):
            if turn["content"].rpartition(THOUGHT_END)[2].strip() not in text:
                raise unwritable(f"leaves out message {place}, of the role {turn['role']!r}")
        if is_written is False:
            raise unwritable(f"leaves out one of {', '.join(roles)}")

    def _end_of_trial(self) -> str:
        try:
            return self.after_answer()
        except UserError:  # reported where the template is used
            return ""


def _is_prompted(messages: Sequence[Message], place: int) -> bool:
    """Return whether anybody has said anything before an answer."""
    return any(message["role"] in ("user", "tool") for message in messages[:place])


def _odd_order(messages: Sequence[Message]) -> str:
    """Return what is unusual about the order of messages, as the end of a sentence, or ""."""
    roles = [message["role"] for message in messages]
    if next(iter(role for role in roles if role not in ("system", "developer")), "") == "assistant":
        return "the conversation begins with an answer"
    twice = next((i for i, pair in enumerate(pairwise(roles)) if pair == ("assistant",) * 2), None)
    return "" if twice is None else f"messages {twice} and {twice + 1} are two answers in a row"
