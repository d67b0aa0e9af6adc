"""The columns of the data to train on: named by the user, or known by their usual names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rundir.errors import ExitCode, UserError
from train.chat.bad_row import BadRowError, missing_column, names_of
from train.chat.cell_values import decoded, truth_of
from train.chat.column_names import (
    ABOUT,
    CHOSEN,
    HISTORY,
    LABELS,
    MESSAGES,
    MORE,
    PAIRS,
    REJECTED,
    SEGMENTS,
    SYSTEM,
    TEXTS,
    TOOLS,
)
from train.chat.messages import PASSED_ON, USED_KEYS

Kind = Literal["text", "pair", "messages", "segments"]

_MOST_NAMED = 3
_VERDICTS = ("true", "false", "yes", "no")
_NUMBERS = ("0", "1", "-1")  # verdicts if the first row has one; otherwise they may be class labels


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of sample.

    `names` holds one column (of texts, messages or segments) or two (of prompts and responses).
    `more`, if not empty, is appended below the prompt. `is_named`: the user has named the columns.
    """

    kind: Kind
    names: tuple[str, ...]
    more: str = ""
    is_named: bool = False

    def __str__(self) -> str:
        names = f"`{self.names[0]}`"
        if self.kind == "pair":
            more = f" with `{self.more}` below it" if self.more else ""
            return f"prompts in {names}{more}, responses in `{self.names[1]}`"
        if self.kind == "messages":
            return f"messages in {names}, loss on the assistant's"
        if self.kind == "segments":
            return f"texts in {names}, loss on those with a true `label`"
        return f"text in {names}, loss on all of it"

    def reads(self, column: str) -> bool:
        """Return whether the column is used, if a row has it."""
        if column in (*self.names, self.more):
            return True
        if self.kind in ("text", "segments"):
            return False
        beside = [*SYSTEM, *TOOLS]
        if self.kind == "pair":
            beside += [HISTORY, *(MORE if _takes_more(self) else ())]
        return column.lower() in beside


LINES = Columns("text", ("text",))  # for files without columns


def find_columns(row: Any, named: str, *, only_where: str = "") -> Columns:
    """Return the columns to train on, judged by one row; `named` is the value of data.columns.

    Raises BadRowError if none are known, if named ones are missing, or if the columns hold answers
    to be compared.
    """
    if not isinstance(row, dict):
        if named or only_where:
            raise BadRowError(
                "is a line of text: it has no columns",
                do="leave data.columns and data.only_where empty; or a file with columns",
            )
        return LINES
    if named:
        return _named(row, [name.strip() for name in named.split(",")])
    there = _by_lower_name(row)
    refuse_compared(row, None, only_where)
    if columns := _list_columns(row, there, empty=False):
        return columns
    if pair := _pair_of(row, there):
        return Columns("pair", (pair[0], pair[-1]), "".join(pair[1:-1]))
    for name in TEXTS:
        if name in there:
            return Columns("text", (there[name],))
    if columns := _list_columns(row, there, empty=True):  # and nothing else matched
        return columns
    alone = "a prompt without an answer: " if "prompt" in there else ""
    raise BadRowError(
        f"has {alone}none of the columns that are known (`prompt` and `response`, `messages`, "
        f"`text`, …); its columns: {names_of(row)}",
        do="--set data.columns=PROMPT,RESPONSE (or =TEXT, or =MESSAGES), by their names",
    )


def _list_columns(row: dict[str, Any], there: dict[str, str], *, empty: bool) -> Columns | None:
    for name in (*MESSAGES, SEGMENTS):
        value = decoded(row[there[name]]) if name in there else None
        if isinstance(value, list) and (empty or value):
            return Columns("segments" if name == SEGMENTS else "messages", (there[name],))
    return None


def _by_lower_name(row: dict[str, Any]) -> dict[str, str]:
    """Return the columns of a row by their lower-case names; an exact name wins."""
    return {str(name).lower(): str(name) for name in row} | {str(name): str(name) for name in row}


def _pair_of(row: dict[str, Any], there: dict[str, str]) -> list[str]:
    """Return the columns of a prompt, its context, if any, and its response; or an empty list."""
    for pair in PAIRS:
        if set(pair) <= there.keys():
            first, last = (there[name] for name in pair)
            more = more_of(row, Columns("pair", (first, last)))
            return [first, *filter(None, [more]), last]
    return []


def _takes_more(columns: Columns) -> bool:
    return not columns.is_named and columns.names[0].lower() in ABOUT


def more_of(row: dict[str, Any], columns: Columns) -> str:
    """Return the column with the prompt's context, "" if there is none; not every row needs one."""
    if columns.more or not _takes_more(columns):
        return columns.more if columns.more in row else ""
    there = {str(name).lower(): str(name) for name in row}
    own = [name.lower() for name in columns.names]
    return next((there[column] for column in MORE if column in there and column not in own), "")


def refuse_compared(row: dict[str, Any], columns: Columns | None, only_where: str) -> None:
    """Raise BadRowError for pairs of a good and a bad answer, and for answers with a verdict.

    Does nothing for texts, segments and columns that the user has named. `columns` is None while
    they are looked for.
    """
    if columns is not None and (columns.is_named or columns.kind in ("text", "segments")):
        return
    rejected = next((name for name in row if name.lower() in REJECTED), None)
    if rejected is not None and isinstance(row[rejected], str | list | dict):
        columns_of_good, what = _good(row, _by_lower_name(row))
        raise BadRowError(
            f"is one of a preference pair: it has a `{rejected}` answer; Airlock trains on answers",
            do=f"--set data.columns={','.join(columns_of_good)}   # {what}",
        )
    label = next((name for name in row if name.lower() in LABELS), None)
    if label is None or label == only_where:
        return
    verdict = str(row[label]).strip().lower()
    if verdict in _VERDICTS or (columns is None and verdict in _NUMBERS):
        there = _by_lower_name(row)
        names = _pair_of(row, there) or [there[name] for name in MESSAGES if name in there]
        if names:
            raise BadRowError(
                f"is a good or a bad answer, as its `{label}` says; Airlock trains on answers",
                do=f"--set data.only_where={label}   # leaves out the bad ones; "
                f"data.columns={','.join(names)} takes all",
            )


def _good(row: dict[str, Any], there: dict[str, str]) -> tuple[list[str], str]:
    """Return the columns of the good answer and of what it answers, and a description of them."""
    alone = "the good ones alone"
    messages = next((there[name] for name in MESSAGES if name in there), None)
    chosen = next((there[name] for name in CHOSEN if name in there), None)
    if chosen is None:
        pair = [messages] if messages else _pair_of(row, there)
        return pair or ["PROMPT,RESPONSE"], alone
    prompts = [there[name] for name in (*ABOUT, "input") if name in there]
    answer = decoded(row[chosen])
    if (isinstance(answer, list) and len(answer) > 1) or not (prompts or messages):
        is_text = isinstance(answer, str)
        return [chosen], "with loss on all of the text" if is_text else alone
    more = [there[name] for name in MORE if there.get(name, "") not in ("", *prompts[:1])]
    return [prompts[0] if prompts else str(messages), *more[:1], chosen], alone


def _named(row: dict[str, Any], names: list[str]) -> Columns:
    if len(names) > _MOST_NAMED:
        raise BadRowError(
            f"cannot be read: data.columns names {len(names)} columns",
            do="--set data.columns=PROMPT,RESPONSE, or PROMPT,MORE,RESPONSE",
        )
    missing = [name for name in names if name not in row]
    if missing:
        raise missing_column(missing[0], row)
    if len(names) > 1:
        more = names[1] if len(names) == _MOST_NAMED else ""
        return Columns("pair", (names[0], names[-1]), more, is_named=True)
    value = decoded(row[names[0]])
    if not isinstance(value, list):
        return Columns("text", (names[0],), is_named=True)
    is_segments = value and isinstance(value[0], dict) and {"label", "text"} <= value[0].keys()
    return Columns("segments" if is_segments else "messages", (names[0],), is_named=True)


def unused(seen: set[str], columns: Columns, writes: Callable[[str], bool]) -> list[str]:
    """Return the columns with a value, and the keys of messages, that nothing reads.

    `writes` returns whether the chat template writes what has a given name.
    """
    names = []
    for name in sorted(seen):
        column, is_key, key = name.partition("[].")
        if is_key:
            is_used = key in USED_KEYS and (key not in PASSED_ON or writes(key))
        else:
            is_used = columns.reads(column)
        if not is_used:
            names.append(name)
    return names


def is_wanted(row: Any, only_where: str) -> bool:
    """Return whether the column named by data.only_where is true in a row. Raises BadRowError."""
    if not only_where or not isinstance(row, dict):
        return True
    if only_where not in row:
        raise missing_column(only_where, row)
    return truth_of(row[only_where], only_where)


def check_settings(columns: Columns, on_long_row: str) -> None:
    """Raise UserError for settings that cannot be applied to such samples."""
    if on_long_row == "split" and columns.kind != "text":
        raise UserError(
            f"data.on_long_row is split, which is for texts; the data has {columns}",
            do="--set data.on_long_row=truncate, or drop, or a larger data.max_seq_length",
            code=ExitCode.DATA,
        )
