"""Conversations, in whatever words a file has them, as chat templates take them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from train.bad_row import BadRowError, in_json
from train.values import decoded, text_of

Message = dict[str, Any]  # role and content, and maybe tool_calls and others that templates read

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
_CALLS = ("function_call", "tool_call")  # roles whose content is what is called
_KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from"), ("content", "value", "parts")
_WEIGHTS = ("weight", "train", "training", "loss")  # whether an answer has loss, by who reads it
PASSED_ON = ("name", "reasoning_content", "thinking")  # to templates that write them
_ID = "tool_call_id"
_OLD_CALL = "function_call"
_SPEAKERS = (("human", "assistant"), ("user", "assistant"), ("human", "gpt"))
USED_KEYS = {
    *(key for pair in _SPEAKERS for key in pair),
    *_ROLE_KEYS,
    *_CONTENT_KEYS,
    *_WEIGHTS,
    *PASSED_ON,
    _ID,
    "tool_calls",
    _OLD_CALL,
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that end with an answer; `without_loss` are places of answers not trained on."""

    messages: list[Message]
    tools: list[Any] | None = None
    without_loss: frozenset[int] = frozenset()

    @property
    def answers(self) -> list[int]:
        """The places of the assistant's messages."""
        return [i for i, one in enumerate(self.messages) if one["role"] == "assistant"]


def read_messages(value: Any, column: str) -> tuple[list[Message], set[int]]:
    """The messages in `value`, and the places of answers without loss. Raises BadRowError."""
    value = decoded(value)
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        raise BadRowError(f"has {in_json(value)} in `{column}`, not a list of messages")
    found: list[Message] = []
    without_loss = set[int]()
    for i, one in enumerate(value):
        where = f"{column}[{i}]"
        for message, has_loss in _turn(one, where):
            if not has_loss:
                without_loss.add(len(found))
            found.append(message)
    return found, without_loss


def is_message(value: Any) -> bool:
    """Whether it says who speaks."""
    return isinstance(value, dict) and any(key in value for key in _ROLE_KEYS)


def conversation(
    messages: list[Message],
    without_loss: set[int],
    column: str,
    *,
    system: str = "",
    tools: Any = None,
    only_last: bool = False,
) -> Conversation:
    """The messages up to the last answer with loss; after that there is nothing to learn.

    `system` is put before them. Raises BadRowError if there is no such answer.
    """
    if system:
        if any(one["role"] in ("system", "developer") for one in messages):
            raise BadRowError(f"has a system prompt in a column and in `{column}`")
        messages = [{"role": "system", "content": system}, *messages]
        without_loss = {place + 1 for place in without_loss}
    answers = [i for i, one in enumerate(messages) if one["role"] == "assistant"]
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
    return Conversation(messages[:end], read_tools(tools), left)


def _turn(one: Any, where: str) -> list[tuple[Message, bool]]:
    """What one entry of a list says, with whether it has loss; usually one message."""
    if not isinstance(one, dict):
        raise BadRowError(f"has {in_json(one)} in `{where}`, not a message")
    role = _first(one, _ROLE_KEYS)
    if role is None:  # a question and its answer in one entry
        for asks, answers in _SPEAKERS:
            if asks in one and answers in one:
                asked = {"role": "user", "content": text_of(one[asks], f"{where}.{asks}")}
                said = text_of(one[answers], f"{where}.{answers}")
                return [(asked, True), ({"role": "assistant", "content": said}, True)]
    if not isinstance(role, str):
        raise BadRowError(f"has no `role` in `{where}`")
    return [(_message(one, role.lower(), where), _has_loss(one, where))]


def _message(one: dict[str, Any], role: str, where: str) -> Message:
    content = _first(one, _CONTENT_KEYS)
    if role in _CALLS:
        called = {"tool_calls": _calls(content, where)}
        return {"role": "assistant", "content": "", **called}
    role = _ROLES.get(role, role)
    if role not in _KNOWN_ROLES:
        raise BadRowError(
            f"has the role {role!r} in `{where}`; known are {', '.join(_KNOWN_ROLES)}, and "
            f"ShareGPT's"
        )
    found: Message = {"role": role}
    calls = one.get("tool_calls") or one.get(_OLD_CALL)
    if calls and role == "assistant":
        found["content"] = "" if not content else text_of(content, f"{where}.content")
        found["tool_calls"] = _calls(calls, where)
    elif role == "tool" and isinstance(content, dict):
        found["content"] = json.dumps(content, ensure_ascii=False)
    else:
        found["content"] = text_of(content, f"{where}.content")
    for key in (*PASSED_ON, _ID):
        if isinstance(one.get(key), str) and one[key]:
            found[key] = one[key]
    return found


def _has_loss(one: dict[str, Any], where: str) -> bool:
    """Whether what is said is to be learned, as the first of the keys that say so has it."""
    for key in _WEIGHTS:
        weight = one.get(key)
        if weight is None:
            continue
        if weight not in (0, 1):
            raise BadRowError(f"has {json.dumps(weight)} for `{where}.{key}`; it may be 0 or 1")
        return bool(weight)
    return True


def _calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Calls of tools, as transformers has them: the arguments are an object, not its text."""
    value = decoded(value)
    calls = value if isinstance(value, list) else [value]
    found = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRowError(f"has a call in `{where}` without the name of a function")
        given = function.get("arguments", function.get("parameters", {}))
        called = {"name": function["name"], "arguments": decoded(given)}
        more = {key: call[key] for key in ("id",) if isinstance(call.get(key), str)}
        found.append({"type": "function", "function": called, **more})
    return found


def read_tools(value: Any) -> list[Any] | None:
    """What tools there are, as transformers has them. Raises BadRowError."""
    value = decoded(value)
    if not value:
        return None
    tools = value if isinstance(value, list) else [value]
    if not all(isinstance(one, dict) for one in tools):
        raise BadRowError("has `tools` that are no objects, nor JSON of such")
    return [one if "function" in one else {"type": "function", "function": one} for one in tools]


def _first(one: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((one[key] for key in keys if one.get(key) is not None), None)
