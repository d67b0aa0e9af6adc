"""A chat template: its inputs, and the text it writes. Does not need torch."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from rundir.errors import ExitCode, UserError
from train.chat.messages import Message, with_all_names

_MARKS = re.compile(r"\{%-?\s*generation\b")
_SECRET = secrets.token_hex(8)  # no data contain it, and nobody can write data that do
_BEGIN, _END = f"\ufdd0{_SECRET}\ufdd1", f"\ufdd1{_SECRET}\ufdd0"
_WORDS = re.compile(rf"qz\d+x{_SECRET}zq")
CALLS = "calls"  # stands for the role of an answer that consists of calls only


class Written(NamedTuple):
    """The text of a conversation, and the ranges of it that {% generation %} marks."""

    text: str
    marked: list[tuple[int, int]]


class ChatTemplate:
    """One compiled template."""

    def __init__(
        self, source: str, tokens: Mapping[str, str], options: Mapping[str, Any] | None = None
    ) -> None:
        """Compile a template; `tokens` are texts of special tokens, `options` its other variables.

        Raises UserError if it is not a valid template.
        """
        self._source, self._given = source, {**tokens, **(options or {})}
        self.has_marks = bool(_MARKS.search(source))
        self._template = _compiled(source)
        self._tried: dict[str, bool | None] = {}
        self._needs_parts = self._reads_only_parts()

    def mentions(self, name: str) -> bool:
        """Return whether the template contains the word `name`."""
        return bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", self._source))

    def writes(self, name: str) -> bool:
        """Return whether the text includes what messages have under `name`, or `tools`.

        This is tried once; if that is not possible, the word must occur in the template.
        """
        if name not in self._tried:
            self._tried[name] = self._has_written(*_probe(name))
        is_written = self._tried[name]
        return self.mentions(name) if is_written is None else is_written

    def writes_roles(self, roles: Sequence[str]) -> bool | None:
        """Return whether messages of all these roles get into the text; None if that is unknown."""
        name = " ".join(roles)
        if name not in self._tried:
            contents = [_in_role(role, place) for place, role in enumerate(roles)]
            self._tried[name] = self._has_written(contents, None)
        return self._tried[name]

    def _has_written(self, messages: list[Message], tools: list[Any] | None) -> bool | None:
        try:
            text = self.write(messages, tools, asks=False).text
        except UserError:
            return None
        return all(word in text for word in _WORDS.findall(json.dumps([messages, tools])))

    def write(self, messages: Sequence[Message], tools: list[Any] | None, *, asks: bool) -> Written:
        """Return the text of a conversation; with `asks`, also the beginning of an answer.

        Raises UserError with the template's message.
        """
        given = {"tools": tools, "documents": None, **self._given}
        if any(message["role"] == "developer" for message in messages) and not self.mentions(
            "developer"
        ):
            messages = [_named(message, "developer", "system") for message in messages]
        try:
            text = self._rendered(messages, given, asks=asks)
        except Exception as error:
            if not any("tool_calls" in message for message in messages):
                raise _unusable(error) from error
            try:  # some expect the arguments of a call as text
                text = self._rendered(
                    [_with_text(message) for message in messages], given, asks=asks
                )
            except Exception:  # noqa: BLE001
                raise _unusable(error) from error
        return self._unmarked(text) if self.has_marks else Written(text, [])

    def _rendered(
        self, messages: Sequence[Message], given: Mapping[str, Any], *, asks: bool
    ) -> str:
        if self._needs_parts:
            messages = [_in_parts(message) for message in messages]
        text: str = self._template.render(
            messages=list(map(with_all_names, messages)), add_generation_prompt=asks, **given
        )
        return text

    def _reads_only_parts(self) -> bool:
        """Return whether the template writes a message's text only if it is a list of parts.

        Some templates of multimodal models do, as images are parts too.
        """
        self._needs_parts = False
        for self._needs_parts in (False, True):
            if self._has_written(*_probe("content")):
                return self._needs_parts
        return False

    def _unmarked(self, text: str) -> Written:
        parts: list[str] = []
        marked: list[tuple[int, int]] = []
        length = 0
        for i, piece in enumerate(text.split(_BEGIN)):
            inside, end, after = piece.partition(_END) if i else ("", "", piece)
            if end:
                marked.append((length, length + len(inside)))
            parts += [inside, after]
            length += len(inside) + len(after)
        return Written("".join(parts), marked)


def _probe(name: str) -> tuple[list[Message], list[Any] | None]:
    """Return a conversation, and tools, with unique words in the place that `name` stands for."""
    question: Message = {"role": "user", "content": _word(0)}
    answer: Message = {"role": "assistant", "content": _word(1)}
    called = {"type": "function", "function": {"name": _word(2), "arguments": {}}}
    if name == "tools":
        tool = {"name": _word(2), "description": "d", "parameters": {"type": "object"}}
        return [question, answer], [{"type": "function", "function": tool}]
    if name == "tool_calls":
        return [question, {"role": "assistant", "content": "", "tool_calls": [called]}], None
    if name == "content":
        return [question, answer], None
    if name == "name":
        return [question | {"name": _word(2)}, answer], None
    return [question, answer | {name: _word(2)}], None


def _in_role(role: str, place: int) -> Message:
    if role == CALLS:
        return _probe("tool_calls")[0][1]
    return {"role": role, "content": _word(place)}


def _in_parts(message: Message) -> Message:
    """Return the message with its text as the only part of a list, as beside images."""
    parts = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return message | {"content": parts}


def _word(number: int) -> str:
    return f"qz{number}x{_SECRET}zq"


def _named(message: Message, role: str, instead: str) -> Message:
    return message | {"role": instead} if message["role"] == role else message


def _with_text(message: Message) -> Message:
    """Return the message with the arguments of its calls as JSON text."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        calls.append(call | {"function": function | {"arguments": text}})
    return message | {"tool_calls": calls}


class NotWrittenError(UserError):
    """A template does not write a conversation."""


def _unusable(error: Exception) -> UserError:
    return NotWrittenError(
        f"this model's chat template cannot be used: {error}",
        do="--set data.chat_template=FILE with a corrected copy of chat_template.jinja; or another "
        "model",
        code=ExitCode.DATA,
    )


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode as transformers does; values that JSON lacks, such as a table's dates, become text."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=str,
    )


@lru_cache(maxsize=64)
def _compiled(source: str) -> Any:
    """Compile the template with the settings and helpers that chat templates are written for."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The {% generation %} tag, which marks what the model says."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise _unusable(error) from error
