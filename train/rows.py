"""From a row as it stands in a file to what is trained on, with the reason if that cannot be."""

from __future__ import annotations

import json
from typing import Any

from train.bad_row import BadRowError, in_json, missing_column
from train.columns import HISTORY, SYSTEM, TOOLS, Columns
from train.lines import LONGEST_ROW_BYTES
from train.messages import (
    Conversation,
    Message,
    conversation,
    is_message,
    read_messages,
)
from train.values import decoded, not_utf8, text_of

Segments = list[tuple[str, bool]]  # texts, and whether they have loss
Example = str | Segments | Conversation

_TURN = 2  # of a history: a question and its answer

TOO_LONG = BadRowError(f"has more than {LONGEST_ROW_BYTES >> 20} MiB")


def parsed(raw: Any) -> Any:
    """The row: JSON becomes an object, all else is one already. Raises BadRowError."""
    if isinstance(raw, BadRowError):
        raise raw
    if isinstance(raw, dict):
        return {name: _without_nulls(value) for name, value in raw.items()}
    if not isinstance(raw, bytes):
        return raw
    if len(raw) > LONGEST_ROW_BYTES:
        raise TOO_LONG
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise not_utf8(raw[error.start]) from error
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadRowError(f"is {in_json(row)}, not an object")
    return row


def _without_nulls(value: Any) -> Any:
    """A value of a table: there every object of a list has the fields of all, most of them null."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def example_of(row: Any, columns: Columns, *, only_last: bool = False) -> Example:
    """What a parsed row is trained on; `only_last`: of a conversation, its last answer alone.

    Raises BadRowError.
    """
    if isinstance(row, str):
        return text_of(row, "", "its line")
    for name in columns.names:
        if name not in row:
            raise missing_column(name, row)
    first, last = columns.names[0], columns.names[-1]
    if columns.kind == "text":
        return text_of(row[first], first)
    if columns.kind == "segments":
        return _segments(row[first], first)
    is_pair = columns.kind == "pair"
    messages, without_loss = _of_pair(row, columns) if is_pair else read_messages(row[first], first)
    return conversation(
        messages,
        without_loss,
        last,
        system=_system(_first_of(row, SYSTEM)),
        tools=_first_of(row, TOOLS),
        only_last=only_last,
    )


def _of_pair(row: dict[str, Any], columns: Columns) -> tuple[list[Message], set[int]]:
    """All messages, and the places of answers without loss: those that belong to the prompt."""
    first, last = columns.names
    history = _history(row.get(HISTORY))
    asked, _ = _side(row[first], first, "user")
    if columns.more and row.get(columns.more) not in (None, ""):
        text = text_of(row[columns.more], columns.more)
        asked[-1] = asked[-1] | {"content": f"{asked[-1]['content']}\n\n{text}"}
    answers, untrained = _side(row[last], last, "assistant")
    before = [*history, *asked]
    without_loss = {len(before) + place for place in untrained}
    for place, one in enumerate(asked, len(history)):
        if one["role"] == "assistant":
            without_loss.add(place)
    return [*before, *answers], without_loss


def _side(value: Any, column: str, role: str) -> tuple[list[Message], set[int]]:
    """A prompt or a response: a text, or messages as TRL and others have them."""
    found = decoded(value)
    if isinstance(found, dict) and not isinstance(value, str):
        found = found.get("messages", [found])  # as OpenAI's preferences have them
    if isinstance(found, list) and found and all(map(is_message, found)):
        return read_messages(found, column)
    return [{"role": role, "content": text_of(value, column)}], set()


def _history(value: Any) -> list[Message]:
    """Earlier questions and answers, as pairs."""
    turns = decoded(value) or []
    if not isinstance(turns, list) or any(
        not isinstance(turn, list) or len(turn) != _TURN for turn in turns
    ):
        raise BadRowError(f"has no pairs of question and answer in `{HISTORY}`")
    return [
        {"role": role, "content": text_of(text, f"{HISTORY}[{i}]")}
        for i, turn in enumerate(turns)
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]


def _segments(value: Any, column: str) -> Segments:
    """Texts that follow each other as they are, each with whether it has loss."""
    value = decoded(value)
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise BadRowError(f"has no list of segments in `{column}`")
    found = [(one.get("text"), bool(one.get("label"))) for one in value]
    for i, (text, _) in enumerate(found):
        if not isinstance(text, str):
            raise BadRowError(f"has {in_json(text)} in `{column}[{i}].text`, not text")
    if not any(has_loss for _, has_loss in found):
        raise BadRowError(f"has no segment with a true `label` in `{column}`")
    return found


def _system(value: Any) -> str:
    if isinstance(value, dict) and "parts" in value:  # as Gemini has it
        value = value["parts"]
    return "" if value is None else text_of(value, "system")


def _first_of(row: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if row.get(name) not in (None, "", [])), None)
