"""Jobs are found by what people type for them."""

from __future__ import annotations

from pathlib import Path

from inbox.claim import add
from inbox.jobs import find_job
from inbox.layout import Layout


def test_a_job_is_found_by_its_number_with_and_without_zeros_and_by_its_file(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path / "box")
    layout.create()
    for letter in "abcdefghijkl":  # the first to the twelfth
        file = tmp_path / f"{letter}.jsonl"
        file.write_text("x")
        add(layout, file, "normal")
    for word in ("12", "000012", "0012", "l.jsonl"):
        match = find_job(layout, word)
        assert match is not None, word
        assert match[1].name == "l.jsonl"
        assert find_job(layout, match[1].id) == match
    for word in ("13", "0", "000000", "1 2", "9" * 5000, "jsonl"):
        assert find_job(layout, word) is None, word
