"""Conversations, in any of the formats that data files use, converted for chat templates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from train.chat.bad_row import BadRowError, in_json
from train.chat.cell_values import decoded, text_of

Message = dict[str, Any]  # role, content, maybe tool_calls and other keys that templates read

_ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "chatbot": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "function": "tool",
    "ipython": "tool",
}
_CALLS = ("function_call", "tool_call")  # roles whose content is a function call
_KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from"), ("content", "value", "parts")
_WEIGHTS = ("weight", "train", "training", "loss")  # each says whether an answer has loss
PASSED_ON = ("name",)  # passed to templates that write it
_REASONING = ("reasoning_content", "thinking", "reasoning")  # as transformers knows it
_ID = "tool_call_id"
_CALL_KEYS = ("tool_calls", "function_call")
_SPEAKERS = (("human", "assistant"), ("user", "assistant"), ("human", "gpt"))
USED_KEYS = {
    *(key for pair in _SPEAKERS for key in pair),
    *_ROLE_KEYS,
    *_CONTENT_KEYS,
    *_WEIGHTS,
    *PASSED_ON,
    *_REASONING,
    _ID,
    *_CALL_KEYS,
}


@dataclass(frozen=True, slots=True)
class ChatExample:
    """Messages that end with an answer; `without_loss` are indices of answers not trained on."""

    messages: list[Message]
    tools: list[Any] | None = None
    without_loss: frozenset[int] = frozenset()

    @property
    def answers(self) -> list[int]:
        """The indices of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]


def read_messages(value: Any, column: str) -> tuple[list[Message], set[int]]:
    """Return the messages in `value`, and which answers have no loss. Raises BadRowError."""
    value = decoded(value)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRowError(f"has {in_json(value)} in `{column}`, not a list of messages")
    messages: list[Message] = []
    without_loss = set[int]()
    for i, turn in enumerate(value):
        where = f"{column}[{i}]"
        for message, has_loss in _turn(turn, where):
            if not has_loss:
                without_loss.add(len(messages))
            messages.append(message)
    return messages, without_loss


def is_message(value: Any) -> bool:
    """Return whether the value names a speaker."""
    return isinstance(value, dict) and any(key in value for key in _ROLE_KEYS)


def conversation(
    messages: list[Message],
    without_loss: set[int],
    column: str,
    *,
    system: str = "",
    tools: Any = None,
    only_last: bool = False,
) -> ChatExample:
    """Return the messages up to the last answer with loss; nothing after it can be learned.

    `system` is put before them. Raises BadRowError if there is no such answer.
    """
    if system:
        if any(message["role"] in ("system", "developer") for message in messages):
            raise BadRowError(f"has a system prompt in a column and in `{column}`")
        messages = [{"role": "system", "content": system}, *messages]
        without_loss = {place + 1 for place in without_loss}
    answers = [i for i, turn in enumerate(messages) if turn["role"] == "assistant"]
    if not answers:
        raise BadRowError(f"has no message of the assistant in `{column}`")
    trained = [place for place in answers if place not in without_loss]
    if not trained:
        raise BadRowError(f"has no answer with loss in `{column}`: all have a weight of 0")
    if only_last:
        if trained[-1] != answers[-1]:
            raise BadRowError(f"has a weight of 0 for the last answer in `{column}`")
        trained = trained[-1:]
    end = trained[-1] + 1
    left = frozenset(place for place in answers if place < end) - frozenset(trained)
    return ChatExample(messages[:end], read_tools(tools), left)


def _turn(turn: Any, where: str) -> list[tuple[Message, bool]]:
    """Return the messages of one entry of a list, usually one, each with whether it has loss."""
    if not isinstance(turn, dict):
        raise BadRowError(f"has {in_json(turn)} in `{where}`, not a message")
    role = _first(turn, _ROLE_KEYS)
    if role is None:  # a question and its answer in one entry
        for asks, answers in _SPEAKERS:
            if asks in turn and answers in turn:
                question = {"role": "user", "content": text_of(turn[asks], f"{where}.{asks}")}
                answer = text_of(turn[answers], f"{where}.{answers}")
                has_loss = _has_loss(turn, where)
                return [(question, True), ({"role": "assistant", "content": answer}, has_loss)]
    if not isinstance(role, str):
        raise BadRowError(f"has no `role` in `{where}`")
    role = role.lower()
    if role == "system" and not _first(turn, _CONTENT_KEYS):
        return []  # some data have an empty one where there is none
    return [(_message(turn, role, where), _has_loss(turn, where))]


def _message(turn: dict[str, Any], role: str, where: str) -> Message:
    content = _first(turn, _CONTENT_KEYS)
    if role in _CALLS:
        called = {"tool_calls": _calls(content, where)}
        return {"role": "assistant", "content": "", **called}
    role = _ROLES.get(role, role)
    if role not in _KNOWN_ROLES:
        raise BadRowError(
            f"has the role {role!r} in `{where}`; known are {', '.join(_KNOWN_ROLES)}, and "
            f"ShareGPT's"
        )
    message: Message = {"role": role}
    calls = _first(turn, _CALL_KEYS)
    if calls and role != "assistant":
        raise BadRowError(f"has calls of tools in `{where}`, which the assistant has not written")
    if calls:
        message["content"] = "" if not content else text_of(content, f"{where}.content")
        message["tool_calls"] = _calls(calls, where)
    elif role == "tool":
        message["content"] = _result(content, f"{where}.content")
    else:
        message["content"] = text_of(content, f"{where}.content")
    for key in (*PASSED_ON, *_REASONING, _ID):
        if turn.get(key) not in (None, "", []):
            message[key] = text_of(turn[key], f"{where}.{key}")
    if len({message[key] for key in _REASONING if key in message}) > 1:
        raise BadRowError(f"has thoughts under two names in `{where}`, with different values")
    return message


def reasoning_of(message: Message) -> str:
    """Return the thoughts that stand beside a message's content, under any of their names."""
    return next((message[key] for key in _REASONING if message.get(key)), "")


def with_all_names(message: Message) -> Message:
    """Return the message with its thoughts under the names that templates read.

    The same as transformers does (utils/chat_template_utils.py).
    """
    reasoning = reasoning_of(message)
    if not reasoning:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _result(content: Any, where: str) -> str:
    """Return a tool's result, possibly nothing or an object, as text."""
    if content is None or content == "":
        return ""
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False, default=str)
    return text_of(content, where)


def _has_loss(turn: dict[str, Any], where: str) -> bool:
    """Return whether a message has loss: it has none if any of the weight keys is 0."""
    has_loss = True
    for key in _WEIGHTS:
        weight = turn.get(key)
        if weight is None:
            continue
        if weight not in (0, 1):
            raise BadRowError(f"has {weight} for `{where}.{key}`; it may be 0 or 1")
        has_loss = has_loss and bool(weight)
    return has_loss


def _calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Return tool calls in transformers' format: the arguments are an object, not its text."""
    value = decoded(value)
    calls = value if isinstance(value, list) else [value]
    made = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRowError(f"has a call in `{where}` without the name of a function")
        given = decoded(function.get("arguments", function.get("parameters"))) or {}
        if not isinstance(given, dict):
            raise BadRowError(
                f"has {in_json(given)} as arguments of a call in `{where}`, not an object"
            )
        called = {"name": function["name"], "arguments": given}
        more = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        made.append({"type": "function", "function": called, **more})
    return made


def read_tools(value: Any) -> list[Any] | None:
    """Return the available tools, in transformers' format. Raises BadRowError."""
    value = decoded(value)
    if not value:
        return None
    tools = value if isinstance(value, list) else [value]
    if not all(isinstance(tool, dict) for tool in tools):
        raise BadRowError("has `tools` that are neither objects nor JSON of objects")
    return [
        tool if "function" in tool else {"type": "function", "function": tool} for tool in tools
    ]


def _first(turn: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """Return the value under one of the keys. Raises BadRowError if two have different values."""
    given = [turn[key] for key in keys if turn.get(key) not in (None, [])]
    if len(given) > 1 and any(other != given[0] for other in given[1:]):
        both = " and ".join(f"`{key}`" for key in keys if turn.get(key) not in (None, []))
        raise BadRowError(f"has both {both} in a message, with different values")
    return given[0] if given else None
