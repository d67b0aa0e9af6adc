"""Conversion of a row of a file into what is trained on, with the reason if that fails."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

from train.chat.bad_row import BadRowError, in_json, missing_column
from train.chat.cell_values import decoded, not_utf8, refuse_media, text_of, truth_of
from train.chat.column_names import HISTORY, SYSTEM, TOOLS
from train.chat.messages import ChatExample, Message, conversation, is_message, read_messages
from train.data.columns import Columns, is_wanted, more_of, refuse_compared
from train.data.formats.file_lines import LONGEST_ROW_BYTES, TOO_LONG

Segments = list[tuple[str, bool]]  # texts, and whether they have loss
Example = str | Segments | ChatExample

_TURN = 2  # entries in a turn of a history: a question and its answer
_ANSWERS = ("assistant", "tool")  # roles that a response may begin with


def parsed(raw: Any) -> Any:
    """Return the row: JSON is parsed, anything else is a row already. Raises BadRowError."""
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


def json_line(row: Any) -> str:
    """Return a row as a line of JSON that gives the same sample again, whatever file it was in."""
    cells = {"text": row} if isinstance(row, str) else row
    return json.dumps(cells, default=_as_text) + "\n"


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _without_nulls(value: Any) -> Any:
    """Remove nulls: in a table every object of a list has the fields of all, most of them null."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def example_of(
    row: Any, columns: Columns, *, only_where: str = "", only_last: bool = False
) -> Example | None:
    """Return what a parsed row is trained on; None if its `only_where` column is not true.

    With `only_last` only a conversation's last answer is trained. Raises BadRowError.
    """
    if isinstance(row, str):
        return text_of(row, "", "its line")
    if not is_wanted(row, only_where):
        return None
    refuse_compared(row, columns, only_where)
    refuse_media(row)
    for name in columns.names:
        if name not in row:
            raise missing_column(name, row)
    first, last = columns.names[0], columns.names[-1]
    if columns.kind == "text":
        return text_of(row[first], first)
    if columns.kind == "segments":
        return _segments(row[first], first)
    is_pair = columns.kind == "pair"
    messages, without_loss = (
        _pair_messages(row, columns) if is_pair else read_messages(row[first], first)
    )
    return conversation(
        messages,
        without_loss,
        last,
        system=_system(_beside(row, columns, SYSTEM)),
        tools=_beside(row, columns, TOOLS),
        only_last=only_last,
    )


def _pair_messages(row: dict[str, Any], columns: Columns) -> tuple[list[Message], set[int]]:
    """Return all messages, and the indices of answers without loss, such as those in the prompt."""
    first, last = columns.names
    history = _history(_beside(row, columns, (HISTORY,)))
    prompts, _ = _side(row[first], first, "user")
    more = more_of(row, columns)
    if more and isinstance(row[more], str | int | float | list) and str(row[more]).strip():
        text = text_of(row[more], more)
        prompts[-1] = prompts[-1] | {"content": f"{prompts[-1]['content']}\n\n{text}"}
    answers, untrained = _side(row[last], last, "assistant")
    if list(takewhile(lambda answer: answer["role"] not in _ANSWERS, answers)):
        if answers[: len(prompts)] != prompts:
            raise BadRowError(
                f"has messages in `{last}` that are no answer to its `{first}`",
                do=f"--set data.columns={last}   # if they are the whole conversation",
            )
        answers = answers[len(prompts) :]  # it repeats the prompt
        untrained = {place - len(prompts) for place in untrained}
    before = [*history, *prompts]
    without_loss = {len(before) + place for place in untrained}
    for place, message in enumerate(prompts, len(history)):
        if message["role"] == "assistant":
            without_loss.add(place)
    return [*before, *answers], without_loss


def _side(value: Any, column: str, role: str) -> tuple[list[Message], set[int]]:
    """Return the messages of a prompt or response, given as text or as messages (as in TRL).

    Also returns the indices of answers without loss.
    """
    content = value
    if isinstance(content, dict):
        content = content.get("messages", [content])  # the format of OpenAI's preference data
    if isinstance(content, list) and content and all(map(is_message, content)):
        return read_messages(content, column)
    return [{"role": role, "content": text_of(value, column)}], set()


def _history(value: Any) -> list[Message]:
    """Return the messages of earlier turns, given as pairs of question and answer."""
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
    """Return consecutive texts, unchanged, each with whether it has loss."""
    value = decoded(value)
    if not isinstance(value, list) or not all(isinstance(segment, dict) for segment in value):
        raise BadRowError(f"has no list of segments in `{column}`")
    segments: Segments = []
    for i, segment in enumerate(value):
        text = segment.get("text")
        if not isinstance(text, str):
            raise BadRowError(f"has {in_json(text)} in `{column}[{i}].text`, not text")
        segments.append((text, truth_of(segment.get("label"), f"{column}[{i}].label")))
    if not any(has_loss for _, has_loss in segments):
        raise BadRowError(f"has no segment with a true `label` in `{column}`")
    return segments


def _system(value: Any) -> str:
    if isinstance(value, dict) and "parts" in value:  # Gemini's format
        value = value["parts"]
    return "" if value is None else text_of(value, "system")


def _beside(row: dict[str, Any], columns: Columns, names: tuple[str, ...]) -> Any:
    """Return the value of one of some columns, ignoring case. Raises BadRowError for two values."""
    own = (*columns.names, columns.more)
    extra = [
        (name, value)
        for name, value in row.items()
        if name.lower() in names and name not in own and value not in (None, [], {})
        if not (isinstance(value, str) and not value.strip())
    ]
    if len(extra) > 1:
        both = " and ".join(f"`{name}`" for name, _ in extra)
        raise BadRowError(f"has both {both}, which mean the same")
    return extra[0][1] if extra else None
