"""Conversations with tools: their descriptions, calls and results, as each format has them."""

from __future__ import annotations

import json

from tests.train.forms.form import PAIR, SHARED, Form, answer, message, system, tool, turn, user

_TOOL = {
    "name": "weather",
    "description": "Tells it",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
_TOOLS = [{"type": "function", "function": _TOOL}]
_WRITTEN_TOOLS = f"(tools: {json.dumps(_TOOLS)})"
_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rom"}'},
}
_CALLED = '(weather {"city": "Rom"})'
_WITH_CALL = [
    message("user", "How is Rom?"),
    message("assistant", None, tool_calls=[_CALL]),
    message("tool", "sunny", tool_call_id="c1"),
    message("assistant", "Sunny."),
]
_CALL_WRITTEN = user("How is Rom?") + answer(_CALLED) + tool("sunny") + answer("Sunny.")

FORMS = [
    Form(
        name="tools and calls",
        of="OpenAI",
        rows=[{"messages": _WITH_CALL, "tools": _TOOLS, "parallel_tool_calls": False}],
        trained=[_WRITTEN_TOOLS + _CALL_WRITTEN],
        unused="parallel_tool_calls",
    ),
    Form(
        name="functions, of before tools",
        of="OpenAI",
        rows=[
            {
                "messages": [
                    message("user", "How is Rom?"),
                    message("assistant", None, function_call=_CALL["function"]),
                    message("function", "sunny", name="weather"),
                    message("assistant", "Sunny."),
                ],
                "functions": [_TOOL],
            }
        ],
        trained=[_WRITTEN_TOOLS + _CALL_WRITTEN],
        unused="messages[].name",
    ),
    Form(
        name="sharegpt with system and tools",
        of="LLaMA-Factory",
        rows=[
            {
                "conversations": [
                    turn("human", "How is Rom?"),
                    turn("function_call", '{"name": "weather", "arguments": {"city": "Rom"}}'),
                    turn("observation", "sunny"),
                    turn("gpt", "Sunny."),
                ],
                "system": "Be brief.",
                "tools": json.dumps([_TOOL]),
            }
        ],
        trained=[_WRITTEN_TOOLS + system("Be brief.") + _CALL_WRITTEN],
    ),
    Form(
        name="a call that is not valid JSON",
        of="LLaMA-Factory",
        rows=[
            {"conversations": [turn("human", "a"), turn("function_call", "weather(Rom)")]},
            {"conversations": SHARED},
        ],
        error="has a call in `conversations[1]` without the name of a function",
        then=PAIR,
    ),
    Form(
        name="tools as JSON, for tables",
        of="TRL",
        rows=[{"messages": _WITH_CALL, "tools": json.dumps(_TOOLS)}],
        trained=[_WRITTEN_TOOLS + _CALL_WRITTEN],
    ),
    Form(
        name="calls in their own role",
        of="ms-swift",
        rows=[
            {
                "tools": json.dumps(_TOOLS),
                "messages": [
                    message("user", "How is Rom?"),
                    message("tool_call", '{"name": "weather", "arguments": {"city": "Rom"}}'),
                    message("tool_response", "sunny"),
                    message("assistant", "Sunny."),
                ],
            }
        ],
        trained=[_WRITTEN_TOOLS + _CALL_WRITTEN],
    ),
]
