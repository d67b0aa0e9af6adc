"""A shape of training data, and what Airlock and TRL make differently of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.train.beside_trl.models import Kind
from tests.train.forms.form import message

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Rows for Airlock, the same for TRL, and the settings with which both do the same.

    `why` names the reason for a difference, or several with commas between: lines of the table in
    docs/data.md ("Compared with TRL"). Without it, both make the same tokens and labels,
    or both refuse. `parts` are all places that differ, (Airlock's, TRL's): tokens are separated by
    `·`, samples by `‖`, and those with loss are in double brackets. The words of a refusal stand in
    `airlock_refuses` and `trl_refuses`.
    """

    name: str
    rows: list[Row]
    trl_rows: list[Row] = field(default_factory=list)  # if TRL needs them in another form
    tokenizer: Kind = "qwen"
    template: str = ""  # the name of one of TRL's chat templates
    recipe: dict[str, Any] = field(default_factory=dict)  # Airlock's data settings
    sft: dict[str, Any] = field(default_factory=dict)  # TRL's SFTConfig
    why: str = ""
    parts: list[tuple[str, str]] = field(default_factory=list)
    airlock_refuses: str = ""
    trl_refuses: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.name, self.template, self.tokenizer]))


ASSISTANT_ONLY = {"assistant_only_loss": True}


def in_parts(row: Row) -> Row:
    """Return a row whose messages are lists of parts, as TRL gives them to multimodal models."""
    as_parts = {
        column: [one | {"content": [{"type": "text", "text": one["content"]}]} for one in messages]
        for column, messages in row.items()
    }
    return row | as_parts


def user(text: Any) -> Row:
    """Return a user's message."""
    return message("user", text)


def answer(text: Any, **more: Any) -> Row:
    """Return a message of the assistant."""
    return message("assistant", text, **more)


def system(text: str) -> Row:
    """Return a system prompt."""
    return message("system", text)


def pair(prompt: Any, completion: Any, **more: Any) -> Row:
    """Return a row with the columns that TRL has for prompts and completions."""
    return {"prompt": prompt, "completion": completion, **more}


def chat(*messages: Row, **more: Any) -> Row:
    """Return a row with a conversation."""
    return {"messages": list(messages), **more}


def text(words: str) -> Row:
    """Return a row with a text."""
    return {"text": words}


def limited(length: int, on_long_row: str, **sft: Any) -> dict[str, Any]:
    """Return the settings of both for samples of at most so many tokens."""
    recipe = {"max_seq_length": length, "on_long_row": on_long_row}
    return {"recipe": recipe, "sft": {"max_length": length, **sft}}


def marked(name: str, *rows: Row, template: str = "qwen3_training", **more: Any) -> Shape:
    """Return conversations with loss on the answers alone, which the template marks for TRL."""
    sft = {"assistant_only_loss": True, **more.pop("sft", {})}
    return Shape(name=name, rows=list(rows), template=template, sft=sft, **more)


SHORT = chat(user("hello the model"), answer("the weather"))
LONG = chat(
    system("Be brief."),
    user("hello the model"),
    answer("the weather is 2+5=7"),
    user("and user?"),
    answer("größe 🚀"),
)
