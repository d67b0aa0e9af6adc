"""Which columns of the data are trained on: named, or known by what they are usually called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.bad_row import BadRowError, missing_column, names_of

Kind = Literal["text", "pair", "messages"]

# In this order: what is more certain to be meant comes first.
_MESSAGES = ("messages", "conversations", "conversation")
_PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("query", "response"),
    ("query", "answer"),
    ("input", "output"),
    ("source", "target"),
    ("prompt", "answer"),
)
_TEXTS = ("text", "content")
_MORE = "input"  # what an instruction may be about, in data like Alpaca's


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of sample.

    `names` are one, of a text or of messages, or two, of a prompt and its response. `more`, where
    it is not empty, is put below the prompt.
    """

    kind: Kind
    names: tuple[str, ...]
    more: str = ""

    def __str__(self) -> str:
        names = f"`{self.names[0]}`"
        if self.kind == "pair":
            more = f" with `{self.more}` below it" if self.more else ""
            return f"prompts in {names}{more}, responses in `{self.names[1]}`"
        if self.kind == "messages":
            return f"messages in {names}, loss on the assistant's"
        return f"text in {names}, loss on all of it"


LINES = Columns("text", ("text",))  # of files that have no columns


def find_columns(row: Any, named: str) -> Columns:
    """The columns to train on, judged by one row; `named` is what data.columns says of them.

    Raises BadRowError when there are none that are known, or not those that were named.
    """
    if not isinstance(row, dict):
        return LINES
    if named:
        return _named(row, [name.strip() for name in named.split(",")])
    for name in _MESSAGES:
        if isinstance(row.get(name), list):
            return Columns("messages", (name,))
    for pair in _PAIRS:
        if set(pair) <= row.keys():
            more = _MORE if pair[0] == "instruction" and _MORE in row else ""
            return Columns("pair", pair, more)
    for name in _TEXTS:
        if name in row:
            return Columns("text", (name,))
    raise BadRowError(
        f"has none of the columns that are known (`prompt` and `response`, `messages`, `text`, …); "
        f"its columns: {names_of(row)}",
        do="--set data.columns=PROMPT,RESPONSE (or =TEXT, or =MESSAGES), by their names",
    )


def _named(row: dict[str, Any], names: list[str]) -> Columns:
    missing = [name for name in names if name not in row]
    if missing:
        raise missing_column(missing[0], row)
    if len(names) > 1:
        return Columns("pair", (names[0], names[1]))
    is_list = isinstance(row[names[0]], list)
    return Columns("messages" if is_list else "text", (names[0],))


def check_settings(columns: Columns, on_long_row: str) -> None:
    """Raise UserError for what cannot be done to such samples."""
    if on_long_row == "split" and columns.kind != "text":
        raise UserError(
            f"data.on_long_row is split, which is for texts; the data has {columns}",
            do="--set data.on_long_row=drop, or a larger data.max_seq_length",
            code=ExitCode.DATA,
        )
