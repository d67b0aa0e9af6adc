"""A shape of training data, and what Airlock and TRL make differently of it.

Most stand in *.toml beside this file, with their rows as lines of JSON.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.train.beside_trl.models import Kind

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


def listed() -> list[Shape]:
    """Return all shapes of the tables."""
    shapes = []
    for table in sorted(Path(__file__).parent.glob("*.toml")):
        for shape in tomllib.loads(table.read_text(encoding="utf-8"))["shape"]:
            rows: Row = {
                name: [json.loads(line) for line in shape.pop(name, "").splitlines()]
                for name in ("rows", "trl_rows")
            }
            parts = [(ours, theirs) for ours, theirs in shape.pop("parts", [])]
            shapes.append(Shape(**shape, **rows, parts=parts))
    return shapes


def in_parts(row: Row) -> Row:
    """Return a row whose messages are lists of parts, as TRL gives them to multimodal models."""
    as_parts = {
        column: [one | {"content": [{"type": "text", "text": one["content"]}]} for one in messages]
        for column, messages in row.items()
    }
    return row | as_parts


TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hello the model"},
    {"role": "assistant", "content": "the weather is 2+5=7"},
    {"role": "user", "content": "and user?"},
    {"role": "assistant", "content": "größe 🚀"},
]
SHORT = {
    "messages": [
        {"role": "user", "content": "hello the model"},
        {"role": "assistant", "content": "the weather"},
    ]
}
LONG = {"messages": TURNS}
PLAIN = {
    "prompt": [{"role": "user", "content": "hello"}],
    "completion": [{"role": "assistant", "content": "the"}],
}
