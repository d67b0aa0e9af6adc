"""A file in a form that people have, and what becomes of it: what is trained, or what is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Messages as the template below writes them; tokens with loss are in double brackets.
TEMPLATE = (
    "{% if tools %}(tools: {{ tools | tojson }}){% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}<|user|>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|assistant|>{{ m.content }}"
    "{% for one in m.tool_calls or [] %}"
    "({{ one.function.name }} {{ one.function.arguments | tojson }})"
    "{% endfor %}<|end|>"
    "{% else %}({{ m.role }}: {{ m.content }}){% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Form:
    """A file, and what is expected of it.

    `rows` are objects for JSON lines, a text, or bytes. Either each sample that is `trained`, or
    some words of the `error`, whose advice works when it is followed: then it trains `then`.
    """

    name: str
    of: str  # the library whose documentation has it
    rows: list[Any] | str | bytes
    file: str = "data.jsonl"
    settings: dict[str, Any] = field(default_factory=dict)
    trained: list[str] | None = None
    unused: str = ""
    error: str = ""
    then: list[str] | None = None

    def __str__(self) -> str:
        return f"{self.of}: {self.name}"


def user(text: str) -> str:
    """What a user says."""
    return f"<|user|>{text}"


def answer(text: str) -> str:
    """What is trained."""
    return f"<|assistant|>[[{text}<|end|>]]"


def said(text: str) -> str:
    """What the assistant says, not trained."""
    return f"<|assistant|>{text}<|end|>"


def system(text: str) -> str:
    """A system prompt."""
    return f"(system: {text})"


def tool(text: str) -> str:
    """What a tool returns."""
    return f"(tool: {text})"


def text(words: str) -> str:
    """A text, all of it trained."""
    return f"[[{words}<|end|>]]"


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """A message in OpenAI's words."""
    return {"role": role, "content": content, **more}


def segment(label: Any, text: str) -> dict[str, Any]:
    """A text with whether it has loss, in Axolotl's words."""
    return {"label": label, "text": text}


def turn(who: str, value: Any) -> dict[str, Any]:
    """A message in ShareGPT's words."""
    return {"from": who, "value": value}


PAIR = [user("2 + 5") + answer("7")]
CHAT = [message("user", "2 + 5"), message("assistant", "7")]
LONG_CHAT = [
    message("system", "Be brief."),
    *CHAT,
    message("user", "And 1 more?"),
    message("assistant", "8"),
]
LONG = system("Be brief.") + user("2 + 5") + answer("7") + user("And 1 more?") + answer("8")
SHARED = [turn("human", "2 + 5"), turn("gpt", "7")]
