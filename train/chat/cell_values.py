"""A value of a row as text, or decoded from its JSON; images, sounds and videos are refused.

Models are trained on text alone.
"""

from __future__ import annotations

import json
from typing import Any

from train.chat.bad_row import BadRowError, in_json

_YES = ("true", "t", "yes", "y", "on")
_NO = ("false", "f", "no", "n", "off", "none", "null", "nan", "", "[]")
_KIND_OF = {"image": "an image", "video": "a video", "audio": "a sound"}
_COLUMNS = {f"{kind}{end}": what for kind, what in _KIND_OF.items() for end in ("", "s")}
_PLACES = ("<image>", "<video>", "<audio>")  # where a text has them, in LLaVA's and others' data
_PART_KINDS = ("image", "image_url", "input_image", "video", "video_url", "audio", "input_audio")


def text_of(value: Any, column: str, where: str = "") -> str:
    """Return a text, a number as text, or joined parts that are texts. Raises BadRowError."""
    where = where or f"`{column}`"
    if isinstance(value, list) and value:
        value = "".join(_part(part, where) for part in value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:  # noqa: PLR0124 - not NaN
        value = json.dumps(value)
    if not isinstance(value, str):
        raise BadRowError(f"has {in_json(value)} in {where}, not text")
    if not value.strip():
        raise BadRowError(f"has no text in {where}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # a lone surrogate: JSON can express it, UTF-8 cannot
        half = ord(value[error.start])
        if 0xDC80 <= half <= 0xDCFF:  # noqa: PLR2004 - surrogateescape of a byte
            raise not_utf8(half - 0xDC00) from error
        raise BadRowError(f"has a lone surrogate (half of a character) in {where}") from error
    return value


def truth_of(value: Any, where: str) -> bool:
    """Return whether a value means yes. Raises BadRowError if it means neither yes nor no."""
    word = str(value).strip().lower()
    if word in _YES or word in _NO:
        return word in _YES
    try:
        return float(word) > 0
    except ValueError:
        raise BadRowError(f"has {value!r} in `{where}`, which is neither true nor false") from None


def _part(part: Any, where: str) -> str:
    if isinstance(part, dict):
        text = part.get("text")
        if isinstance(text, str) and part.get("type", "text") in ("text", "input_text"):
            return text
        if part.get("type") in _PART_KINDS:
            raise BadRowError(
                f"has a part of type {part['type']!r} in {where}: Airlock trains on text alone",
                do="--set data.on_bad_row=skip   # leaves such rows out, and lists them",
            )
        if isinstance(part.get("type"), str):
            raise BadRowError(f"has a part of type {part['type']!r} in {where}; only text is read")
    raise BadRowError(f"has {in_json(part)} among the parts of {where}, not text")


def not_utf8(byte: int) -> BadRowError:
    """Return the error for text in another encoding."""
    return BadRowError(
        f"is not UTF-8: it has the byte 0x{byte:02x}",
        do="iconv -f WINDOWS-1252 -t UTF-8 FILE > utf8, if that is what it is",
    )


def decoded(value: Any) -> Any:
    """Decode a list or an object stored as JSON text, as in CSV; return anything else unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def refuse_media(row: dict[str, Any]) -> None:
    """Raise BadRowError for a row that has an image, a video or a sound beside its text.

    A text in a column of that name counts if the row's other texts say where it belongs: else it
    can be a mere address, which nothing refers to.
    """
    for name, value in row.items():
        if name.lower() not in _COLUMNS or value in (None, "", [], {}):
            continue
        if isinstance(value, str) and not _has_place(row):
            continue
        raise BadRowError(
            f"has {_COLUMNS[name.lower()]} in `{name}`: Airlock trains on text alone",
            do="--set data.on_bad_row=skip   # leaves such rows out, and lists them",
        )


def _has_place(row: dict[str, Any]) -> bool:
    text = str(row)
    return any(place in text for place in _PLACES)
