"""A format of data is one class: everything that reads data finds it by its line in the list."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.files.fetch_data import as_they_are, parse
from rundir.errors import UserError
from tests.train.data.test_prepare_data import cache, file, model, prepare_file, saved_tokenizer
from train.data.dataset import SampleFile
from train.data.formats.file_lines import decoded, filled_lines
from train.data.formats.known import FORMATS
from train.data.formats.source import Source
from train.data.formats.text_format import TextFormat, TextRow
from train.data.sources import bad_row, find_sources
from train.stream.piece_reader import PieceReader
from train.stream.pieces import StreamFile, scan_all

__all__ = ["cache", "file", "model", "saved_tokenizer"]  # their fixtures


class Questions(TextFormat):
    """A made-up format: a question and its answer a line, with an arrow in between."""

    name, title, endings, magics = "questions", "questions", (".qa", ".faq"), (b"#QA\n",)

    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:  # noqa: ARG002
        for number, line in filled_lines(file, start):
            prompt, _, response = decoded(line).partition(" -> ")
            if response:
                yield number, {"prompt": prompt, "response": response.strip()}, len(line)


@pytest.fixture
def _known() -> Iterator[None]:
    FORMATS.append(Questions())
    yield
    FORMATS.pop()


ROWS = [(f"{i} + 1", str(i + 1)) for i in range(200)]
TEXT = ("#QA\n" + "".join(f"{prompt} -> {response}\n" for prompt, response in ROWS)).encode()


@pytest.mark.usefixtures("_known")
@pytest.mark.parametrize("ending", [".faq", ".qa.gz"])
def test_a_format_that_is_added_is_prepared_streamed_and_fetched(
    model: Path, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / "data" / f"rows{ending}"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(TEXT) if ending.endswith("gz") else TEXT)
    (source,) = find_sources(path.parent)  # by its ending
    assert source.format == "questions"
    samples = SampleFile(prepare_file(path.parent, model, 0, 100))
    assert [samples.texts(i) for i in range(len(samples))] == ROWS
    files = [StreamFile.of(source)]
    table = scan_all(files, 300, 0)
    assert len(table) > 4
    with closing(PieceReader(files, print)) as reader:
        wanted = [np.arange(piece["num_rows"]) for piece in table]
        rows = [pair for _, some in reader.rows(table, wanted) for pair in some]
    assert [number for number, _ in rows] == list(range(2, 202))
    assert [(row["prompt"], row["response"]) for _, row in rows if isinstance(row, dict)] == ROWS
    assert f"{path} | sed -n '7{{p;q}}'" in bad_row(source, 7, "is bad").do
    assert as_they_are([path.name, "README.md"], parse("hf:someone/rows")) == [path.name]


@pytest.mark.usefixtures("_known")
def test_a_format_is_told_by_its_first_bytes_whatever_the_name(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes(TEXT)
    assert [source.name for source in find_sources(tmp_path)] == ["questions"]
    (tmp_path / "rows.txt").rename(tmp_path / "rows.jsonl")
    assert [source.name for source in find_sources(tmp_path)] == ["questions"]
    (tmp_path / "rows.jsonl").unlink()
    (tmp_path / "other.qa").write_text("no such bytes\n")
    with pytest.raises(UserError, match="is no questions file"):
        find_sources(tmp_path)
