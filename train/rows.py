"""From a row as it stands in a file to what is trained on, with the reason if that cannot be."""

from __future__ import annotations

import json
from typing import Any

from train.bad_row import BadRowError, missing_column
from train.columns import Columns
from train.lines import LONGEST_ROW_BYTES

Message = dict[str, str]  # role and content
Example = str | list[Message]  # a text, or a conversation

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bard": "assistant"}


TOO_LONG = BadRowError(f"has more than {LONGEST_ROW_BYTES >> 20} MiB")


def parsed(raw: Any) -> Any:
    """The row: JSON becomes an object, all else is one already. Raises BadRowError."""
    if isinstance(raw, BadRowError):
        raise raw
    if not isinstance(raw, bytes):
        return raw
    if len(raw) > LONGEST_ROW_BYTES:
        raise TOO_LONG
    try:
        row = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _not_utf8(raw[error.start]) from error
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"is not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadRowError(f"is a {type(row).__name__}, not an object")
    return row


def example_of(row: Any, columns: Columns) -> Example:
    """What a parsed row is trained on. Raises BadRowError."""
    if isinstance(row, str):
        return _text(row, "", "its line")
    for name in columns.names:
        if name not in row:
            raise missing_column(name, row)
    first = columns.names[0]
    if columns.kind == "messages":
        return _messages(row[first], first)
    text = _text(row[first], first)
    if columns.kind == "text":
        return text
    answer = _text(row[columns.names[1]], columns.names[1])
    more = row.get(columns.more) if columns.more else None
    if more is not None and more != "":
        text = f"{text}\n\n{_text(more, columns.more)}"
    return [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]


def _messages(value: Any, column: str) -> list[Message]:
    """Messages up to the last of the assistant's; after that there is nothing to learn."""
    if not isinstance(value, list):
        raise BadRowError(f"has a {type(value).__name__} in `{column}`, not a list of messages")
    found = [_message(one, f"{column}[{i}]") for i, one in enumerate(value)]
    while found and found[-1]["role"] != "assistant":
        found.pop()
    if not found:
        raise BadRowError(f"has no message of the assistant in `{column}`")
    return found


def _message(one: Any, where: str) -> Message:
    """One message, in the words of OpenAI's format or of ShareGPT's."""
    if not isinstance(one, dict):
        raise BadRowError(f"has a {type(one).__name__} in `{where}`, not a message")
    role, content = one.get("role", one.get("from")), one.get("content", one.get("value"))
    if not isinstance(role, str):
        raise BadRowError(f"has no `role` in `{where}`")
    return {"role": _ROLES.get(role, role), "content": _text(content, f"{where}.content")}


def _text(text: Any, column: str, where: str = "") -> str:
    where = where or f"`{column}`"
    if not isinstance(text, str):
        raise BadRowError(f"has a {type(text).__name__} in {where}, not text")
    if not text.strip():
        raise BadRowError(f"has no text in {where}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell it, no text can hold it
        half = ord(text[error.start])
        if 0xDC80 <= half <= 0xDCFF:  # noqa: PLR2004 - what Python makes of a byte that is no text
            raise _not_utf8(half - 0xDC00) from error
        raise BadRowError(f"has half a character in {where}") from error
    return text


def _not_utf8(byte: int) -> BadRowError:
    return BadRowError(
        f"is not UTF-8: it has the byte 0x{byte:02x}",
        do="iconv -f WINDOWS-1252 -t UTF-8 FILE > utf8, if that is what it is",
    )
