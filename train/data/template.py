"""Conversations as written by the model's own chat template, and which parts of them have loss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.data.chat_template import (
    CALLS,
    ChatTemplate,
    Written,
    find_templates,
    tokenizer_config,
)
from train.data.messages import Conversation, Message

Part = tuple[str, bool]  # text, and whether it has loss

_ASKED, _ANSWER = "prompt", "answer"  # texts of a trial conversation
_THOUGHT = "</think>"  # templates omit what precedes it in earlier answers
_PLAIN = ("user", "assistant")  # the only roles possible without a template
_OWN_TEMPLATE = "--set data.chat_template=FILE, that of a model of its family; or such a model"


class Template:
    """Turns conversations into text."""

    def __init__(
        self, model_path: Path, own: str = "", options: Mapping[str, Any] | None = None
    ) -> None:
        """Read the template of a local model folder, or the file `own`.

        A model without one gets plain text. Raises UserError for an invalid template.
        """
        self._tokens = special_tokens(model_path)
        source, with_tools = find_templates(model_path, own)
        self._template = None if source is None else ChatTemplate(source, self._tokens, options)
        self._with_tools = self._template
        if with_tools is not None:
            self._with_tools = ChatTemplate(with_tools, self._tokens, options)
        known = [one for one in (self._template, self._with_tools) if one is not None]
        for name in options or {}:
            if known and not any(one.mentions(name) for one in known):
                raise UserError(
                    f"data.template_options has {name!r}, which the chat template does not use",
                    do="a name that stands in it, such as enable_thinking; or leave it out",
                    code=ExitCode.USAGE,
                )
        self._uses_marks, self.note = self._marks()

    def writes(self, name: str) -> bool:
        """Return whether what messages have under `name` gets into the text."""
        return any(one and one.writes(name) for one in (self._template, self._with_tools))

    def render(self, prompt: str, response: str) -> tuple[str, str]:
        """Return (text before the answer, the answer including its end mark)."""
        asked = {"role": "user", "content": prompt}
        chat = [asked, {"role": "assistant", "content": response}]
        (before, _), *answer = self._turn(chat, None)
        return before, "".join(text for text, _ in answer)

    def conversation(self, chat: Conversation) -> list[list[Part]]:
        """Return the samples that a conversation makes, each as the parts of its text.

        There is one sample if the template only appends from turn to turn. Some templates (Qwen3's)
        rewrite earlier turns: then there is one sample per answer, with what came before it as the
        model would see it, and loss on that answer alone. Raises UserError for what the template
        cannot write.
        """
        trained = [place for place in chat.answers if place not in chat.without_loss]
        turns = [self._turn(chat.messages[: place + 1], chat.tools) for place in trained]
        self._check_roles(chat)
        parts: list[Part] = []
        done = ""
        for (before, _), *answer in turns:
            if not before.startswith(done):
                return turns
            parts += [(before[len(done) :], False), *answer]
            done = before + "".join(text for text, _ in answer)
        return [parts]

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
        return self.render(_ASKED, _ANSWER)[1].partition(_ANSWER)[2]

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
        found: int | None = tokenizer.token_to_id(self._tokens["eos_token"] or "")
        return found

    def _turn(self, messages: list[Message], tools: list[Any] | None) -> list[Part]:
        """Return all text before the last message, which is an answer, and that message's parts."""
        template = self._with_tools if tools else self._template
        if template is None:
            return self._plainly(messages, tools)
        for name, what in (("tool_calls", "calls of tools"), ("tools", "tools")):
            has = tools if name == "tools" else any(name in one for one in messages)
            if has and not template.writes(name):
                raise _unwritable(f"does not write {what}")
        before = template.write(messages[:-1], tools, asks=True).text
        whole = template.write(messages, tools, asks=False)
        if not whole.text.startswith(before):
            raise UserError(
                "this model's chat template changes the prompt once an answer follows it",
                do="use a model whose template only appends, as most do",
                code=ExitCode.DATA,
            )
        answer = whole.text[len(before) :]
        thought = messages[-1]["content"].rpartition(_THOUGHT)[0].rpartition("<think>")[2].strip()
        if thought not in whole.text:
            raise _unwritable("leaves out the thoughts of the answer that is trained")
        if template.has_marks and self._uses_marks:
            parts = _as_marked(whole, len(before))
            if any(has_loss for _, has_loss in parts):
                return [(before, False), *parts]
        return [(before, False), (answer, True)]

    def _plainly(self, messages: list[Message], tools: list[Any] | None) -> list[Part]:
        """Return prompt, newline, response and end: without a template nothing else is possible."""
        has_calls = any("tool_calls" in one for one in messages)
        if tuple(one["role"] for one in messages) != _PLAIN or tools or has_calls:
            roles = ", ".join(one["role"] for one in messages)
            raise UserError(
                "this model has no chat template, so nothing would tell who speaks in a "
                f"conversation of {roles}",
                do=_OWN_TEMPLATE,
                code=ExitCode.DATA,
            )
        asked, answer = (one["content"] for one in messages)
        return [(asked + "\n", False), (answer + self._tokens["eos_token"], True)]

    def _check_roles(self, chat: Conversation) -> None:
        """Raise UserError if the template omits a message, as some do with some roles.

        Tried once for each sequence of roles: a short message may occur elsewhere by chance.
        """
        template = self._with_tools if chat.tools else self._template
        if template is None:
            return
        roles = [
            CALLS if "tool_calls" in one and not one["content"] else one["role"]
            for one in chat.messages
        ]
        is_written = template.writes_roles(roles)
        if is_written:
            return
        text = template.write(chat.messages, chat.tools, asks=False).text
        for place, one in enumerate(chat.messages):
            if one["content"].rpartition(_THOUGHT)[2].strip() not in text:
                raise _unwritable(f"leaves out message {place}, of the role {one['role']!r}")
        if is_written is False:
            raise _unwritable(f"leaves out one of {', '.join(roles)}")

    def _marks(self) -> tuple[bool, str]:
        """Return whether the template's own marks say what has loss, and a note about it."""
        if self._template is None:
            return False, "no chat template: a prompt, a new line, the response and its end"
        if not self._template.has_marks:
            return False, ""
        asked = {"role": "user", "content": _ASKED}
        chat = [asked, {"role": "assistant", "content": _ANSWER}]
        try:
            before = self._template.write(chat[:1], None, asks=True).text
            whole = self._template.write(chat, None, asks=False)
        except UserError:  # reported where the template is used
            return False, ""
        ours = whole.text[len(before) :]
        theirs = "".join(text for text, has in _as_marked(whole, len(before)) if has)
        end = ours.partition(_ANSWER)[2].strip()
        if theirs == ours:
            return True, ""
        if _ANSWER + end not in theirs:
            return False, (
                f"the template marks {theirs!r} as said by the model ({{% generation %}}), without "
                f"what ends it; loss is on {ours!r}"
            )
        return True, (
            f"loss is on what the template marks ({{% generation %}}): {theirs!r} of {ours!r}"
        )


def _unwritable(what: str) -> UserError:
    return UserError(f"this model's chat template {what}", do=_OWN_TEMPLATE, code=ExitCode.DATA)


def _as_marked(whole: Written, begin: int) -> list[Part]:
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


def special_tokens(model_path: Path) -> dict[str, str]:
    """Return the texts of bos_token, eos_token and pad_token; "" for a missing one."""
    settings = tokenizer_config(model_path)
    return {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token", "pad_token")}


def _token_text(token: Any) -> str:
    """Return the text of a special token, stored as text or as an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
