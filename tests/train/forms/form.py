"""A file in a form that users have, and its outcome: what is trained, or the error."""

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
    """A file, and the expected outcome.

    `rows` are objects for JSON lines, a text, or bytes. The outcome is either the samples in
    `trained`, or an error with the words in `error`, whose advice works when followed: then it
    trains `then`.
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
    """Return a user's message."""
    return f"<|user|>{text}"


def answer(text: str) -> str:
    """Return an assistant's message that is trained."""
    return f"<|assistant|>[[{text}<|end|>]]"


def said(text: str) -> str:
    """Return an assistant's message that is not trained."""
    return f"<|assistant|>{text}<|end|>"


def system(text: str) -> str:
    """Return a system prompt."""
    return f"(system: {text})"


def tool(text: str) -> str:
    """Return a tool's result."""
    return f"(tool: {text})"


def text(words: str) -> str:
    """Return a text, all of it trained."""
    return f"[[{words}<|end|>]]"


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return a message in OpenAI's format."""
    return {"role": role, "content": content, **more}


def segment(label: Any, text: str) -> dict[str, Any]:
    """Return a text with a flag for its loss, in Axolotl's format."""
    return {"label": label, "text": text}


def turn(who: str, value: Any) -> dict[str, Any]:
    """Return a message in ShareGPT's format."""
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
