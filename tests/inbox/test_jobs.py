"""Jobs are found by what people type for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from inbox.claim import add
from inbox.jobs import find_job
from inbox.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Return an inbox whose jobs, from the first to the twelfth, are called a.jsonl to l.jsonl."""
    found = Layout(tmp_path / "box")
    found.create()
    for letter in "abcdefghijkl":
        file = tmp_path / f"{letter}.jsonl"
        file.write_text("x")
        add(found, file, "normal")
    return found


@pytest.mark.parametrize("word", ["12", "000012", "0012", "l.jsonl"])
def test_a_job_is_found_by_its_number_with_and_without_zeros_and_by_its_file(
    layout: Layout, word: str
) -> None:
    found = find_job(layout, word)
    assert found is not None
    assert found[1].name == "l.jsonl"
    assert find_job(layout, found[1].id) == found


@pytest.mark.parametrize("word", ["13", "0", "000000", "1 2", "9" * 5000, "jsonl"])
def test_what_no_job_is_called_finds_none(layout: Layout, word: str) -> None:
    assert find_job(layout, word) is None
