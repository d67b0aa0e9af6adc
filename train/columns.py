"""Which columns of the data are trained on: named, or known by what they are usually called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.bad_row import BadRowError, missing_column, names_of
from train.messages import PASSED_ON, USED_KEYS
from train.values import decoded

Kind = Literal["text", "pair", "messages", "segments"]

# In this order: what is more certain to be meant comes first.
_MESSAGES = ("messages", "conversations", "conversation", "dialogue", "dialog", "contents")
_PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("instruction", "completion"),
    ("instruction", "answer"),
    ("question", "answer"),
    ("question", "response"),
    ("question", "solution"),
    ("problem", "solution"),
    ("query", "response"),
    ("query", "answer"),
    ("input", "output"),
    ("inputs", "targets"),
    ("input", "target"),
    ("source", "target"),
    ("user", "assistant"),
    ("human", "assistant"),
    ("prompt", "answer"),
    ("article", "summary"),
)
_TEXTS = ("text", "content")
_SEGMENTS = "segments"
_MORE = ("input", "context")  # what an instruction or a question may be about
_ABOUT = ("instruction", "question", "query")
SYSTEM = ("system", "system_prompt", "systemInstruction")
TOOLS = ("tools", "functions")
HISTORY = "history"
_MOST_NAMED = 3
_CHOSEN = ("chosen", "preferred_output")
_REJECTED = ("rejected", "rejected_response", "rejected_messages", "non_preferred_output")
_LABELS = ("label", "kto_tag")  # of rows that are good or bad answers
_TRUE_OR_FALSE = ("true", "false")


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one kind of sample.

    `names` are one, of a text, of messages or of segments, or two, of a prompt and its response.
    `more`, where it is not empty, is put below the prompt.
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
        if self.kind == "segments":
            return f"texts in {names}, loss on those with a true `label`"
        return f"text in {names}, loss on all of it"

    @property
    def used(self) -> set[str]:
        """All columns that are read, if they are there."""
        own = {*self.names, self.more}
        return own if self.kind in ("text", "segments") else {*own, *SYSTEM, *TOOLS, HISTORY}


LINES = Columns("text", ("text",))  # of files that have no columns


def find_columns(row: Any, named: str, *, only_where: str = "") -> Columns:
    """The columns to train on, judged by one row; `named` is what data.columns says of them.

    Raises BadRowError when there are none that are known, or not those that were named, or when
    they are answers to be compared.
    """
    if not isinstance(row, dict):
        return LINES
    if named:
        return _named(row, [name.strip() for name in named.split(",")])
    there = {str(name).lower(): str(name) for name in row} | {str(name): str(name) for name in row}
    _refuse_compared(row, there, only_where)
    for name in (*_MESSAGES, _SEGMENTS):
        if name in there and isinstance(decoded(row[there[name]]), list):
            return Columns("segments" if name == _SEGMENTS else "messages", (there[name],))
    for pair in _PAIRS:
        if set(pair) <= there.keys():
            more = next((one for one in _MORE if one in there and one not in pair), "")
            more = there[more] if more and pair[0] in _ABOUT else ""
            return Columns("pair", (there[pair[0]], there[pair[1]]), more)
    for name in _TEXTS:
        if name in there:
            return Columns("text", (there[name],))
    alone = "a prompt without an answer: " if "prompt" in there else ""
    raise BadRowError(
        f"has {alone}none of the columns that are known (`prompt` and `response`, `messages`, "
        f"`text`, …); its columns: {names_of(row)}",
        do="--set data.columns=PROMPT,RESPONSE (or =TEXT, or =MESSAGES), by their names",
    )


def _refuse_compared(row: dict[str, Any], there: dict[str, str], only_where: str) -> None:
    """Raise BadRowError for pairs of a good and a bad answer, and for answers with a verdict."""
    rejected = next((there[name] for name in _REJECTED if name in there), None)
    if rejected is not None:
        good = _good(row, there)
        raise BadRowError(
            f"is one of a preference pair: it has a `{rejected}` answer; Airlock trains on answers",
            do=f"--set data.columns={','.join(good)}   # the good ones alone",
        )
    label = next((there[name] for name in _LABELS if name in there), None)
    if label and not only_where and str(row[label]).lower() in _TRUE_OR_FALSE:
        is_asked = any(set(pair) <= there.keys() for pair in _PAIRS)
        if is_asked or any(name in there for name in _MESSAGES):
            raise BadRowError(
                f"is a good or a bad answer, as its `{label}` says; Airlock trains on answers",
                do=f"--set data.only_where={label}   # leaves out the bad ones",
            )


def _good(row: dict[str, Any], there: dict[str, str]) -> list[str]:
    """The columns of the good answer, with what it is an answer to."""
    messages = next((there[name] for name in _MESSAGES if name in there), None)
    chosen = next((there[name] for name in _CHOSEN if name in there), None)
    if chosen is None:
        return [messages or "PROMPT,RESPONSE"]
    asked = [there[name] for name in (*_ABOUT, "prompt", "input") if name in there]
    answer = decoded(row[chosen])
    if (isinstance(answer, list) and len(answer) > 1) or not (asked or messages):
        return [chosen]  # the question is in it
    more = [there[name] for name in _MORE if there.get(name, "") not in ("", *asked[:1])]
    return [asked[0] if asked else str(messages), *more[:1], chosen]


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
        return Columns("pair", (names[0], names[-1]), more)
    value = decoded(row[names[0]])
    if not isinstance(value, list):
        return Columns("text", (names[0],))
    is_segments = value and isinstance(value[0], dict) and {"label", "text"} <= value[0].keys()
    return Columns("segments" if is_segments else "messages", (names[0],))


def unused(seen: set[str], columns: Columns, mentions: Callable[[str], bool]) -> list[str]:
    """Of columns that have something in them, and keys of messages, those that nobody reads.

    `mentions` is whether the chat template writes what goes by a name.
    """
    found = []
    for name in sorted(seen):
        column, is_key, key = name.partition("[].")
        if is_key:
            is_used = key in USED_KEYS and (key not in PASSED_ON or mentions(key))
        else:
            is_used = column in columns.used
        if not is_used:
            found.append(name)
    return found


def is_wanted(row: Any, only_where: str) -> bool:
    """Whether the column that data.only_where names is true in a row. Raises BadRowError."""
    if not only_where or not isinstance(row, dict):
        return True
    if only_where not in row:
        raise missing_column(only_where, row)
    value = row[only_where]
    return bool(value) and str(value).strip().lower() not in ("false", "0", "no", "none", "nan")


def check_settings(columns: Columns, on_long_row: str) -> None:
    """Raise UserError for what cannot be done to such samples."""
    if on_long_row == "split" and columns.kind != "text":
        raise UserError(
            f"data.on_long_row is split, which is for texts; the data has {columns}",
            do="--set data.on_long_row=truncate, or drop, or a larger data.max_seq_length",
            code=ExitCode.DATA,
        )
