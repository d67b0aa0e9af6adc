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

    `rows` is what is in the file. The outcome is either the samples in `trained`, or an error with
    the words in `error`, whose advice works when followed: then it trains `then`.
    """

    name: str
    of: str  # the library whose documentation has it
    rows: str | bytes
    file: str = "data.jsonl"
    settings: dict[str, Any] = field(default_factory=dict)
    trained: list[str] | None = None
    unused: str = ""
    error: str = ""
    then: list[str] | None = None

    def __str__(self) -> str:
        return f"{self.of}: {self.name}"


PAIR = ["<|user|>2 + 5<|assistant|>[[7<|end|>]]"]
CHAT = [{"role": "user", "content": "2 + 5"}, {"role": "assistant", "content": "7"}]
