"""Rows with images, sounds or videos, which are refused: models are trained on text alone."""

from __future__ import annotations

from typing import Any

from train.chat.bad_row import BadRowError

_KIND_OF = {"image": "an image", "video": "a video", "audio": "a sound"}
_COLUMNS = {f"{kind}{end}": what for kind, what in _KIND_OF.items() for end in ("", "s")}
_PLACES = ("<image>", "<video>", "<audio>")  # where a text has them, in LLaVA's and others' data
KINDS = ("image", "image_url", "input_image", "video", "video_url", "audio", "input_audio")


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
