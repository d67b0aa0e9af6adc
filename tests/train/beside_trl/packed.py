"""Shapes of conversations that are long, packed, or have tools."""

from __future__ import annotations

import json

from tests.train.beside_trl.shape import SHORT, answer, chat, limited, marked, user
from tests.train.forms.form import message

_MANY = [
    chat(user("hello " * asked), answer("the " * answered))
    for asked, answered in ((1, 2), (5, 3), (2, 2), (9, 9), (1, 1), (3, 8))
]
_ANSWERED_AT_LENGTH = chat(user("hello"), answer("the model answers the user"))
_BFD = {"packing": True, "packing_strategy": "bfd"}
_BFD_SPLIT = {"packing": True, "packing_strategy": "bfd_split"}
_WRAPPED = {"packing": True, "packing_strategy": "wrapped"}

LENGTHS = [
    marked(
        "long conversations, cut off",
        SHORT,
        chat(user("hello " * 20), answer("the")),
        **limited(12, "truncate"),
    ),
    marked(
        "long conversations, left out",
        SHORT,
        _ANSWERED_AT_LENGTH,
        **limited(19, "drop"),
        why="long rows",
        parts=[
            (
                "",
                (
                    "<|im_start|>·user·\n·hello·<|im_end|>·\n·<|im_start|>·assistant·\n·"
                    "[[<think>·\n\n·</think>·\n\n·the· model· answers· the· user·<|im_end|>]]·‖"
                ),
            )
        ],
    ),
    marked("conversations in packs", *_MANY, **limited(48, "drop", **_BFD)),
    marked("conversations in packs, cut off", *_MANY, **limited(20, "truncate", **_BFD)),
    marked(
        "conversations in packs, split",
        _ANSWERED_AT_LENGTH,
        **limited(12, "truncate", **_BFD_SPLIT),
        why="conversations split",
        parts=[("", "\n\n·[[the· model· answers· the· user·<|im_end|>·\n]]·‖")],
    ),
    marked(
        "conversations joined and cut",
        SHORT,
        _ANSWERED_AT_LENGTH,
        **limited(24, "drop", **_WRAPPED),
        why="joined and cut",
        parts=[("‖", ""), ("", "‖")],
    ),
]

_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "größe"}}}
_CALLED = chat(
    user("hello"),
    answer("", tool_calls=[_CALL]),
    message("tool", "100%"),
    answer("the weather"),
    tools=[_WEATHER],
)

TOOLS = [
    marked("tools, calls and results", _CALLED),
    marked("tools, calls and results", _CALLED, template="lfm2_v2_training"),
    marked("tools, calls and results", _CALLED, template="glm4moe_training"),
    marked("tools as JSON", _CALLED | {"tools": json.dumps([_WEATHER])}),
    marked("tools that are not called", SHORT | {"tools": [_WEATHER]}),
    marked(
        "tools that the template does not write",
        SHORT | {"tools": [_WEATHER]},
        template="llama3_training",
        why="tools not written",
        airlock_refuses="does not write tools",
    ),
]
