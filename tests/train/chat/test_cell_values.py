"""Rows with images are refused; those of the same data that have none are trained on."""

from __future__ import annotations

from typing import Any

import pytest

from train.chat.bad_row import BadRowError
from train.chat.cell_values import refuse_media

PLACED = [{"role": "user", "content": "<image>What is it?"}]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [], "images": ["a.png"]}, "has an image in `images`"),
        ({"messages": [], "image": {"bytes": b"x", "path": None}}, "has an image in `image`"),
        ({"messages": PLACED, "image": "a.png"}, "has an image in `image`"),
        ({"messages": [], "Videos": [{"path": "a.mp4"}]}, "has a video in `Videos`"),
        ({"prompt": "hear", "audio": {"array": [0.1]}}, "has a sound in `audio`"),
    ],
)
def test_a_row_with_an_image_is_refused(row: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRowError) as error:
        refuse_media(row)
    assert words in error.value.what
    assert "data.on_bad_row=skip" in error.value.do


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [], "images": []},
        {"messages": [], "images": None, "video": ""},
        {"name": "chair", "image": "https://example.org/chair.png", "text": "a chair"},
    ],
)
def test_a_row_without_one_is_not(row: dict[str, Any]) -> None:
    refuse_media(row)
