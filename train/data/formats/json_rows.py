"""JSON: a row a line (JSONL), or values over several lines, maybe in an array.

Which of the two a file is, its content says whatever its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from train.data.formats.file_lines import filled_lines
from train.data.formats.format import Format
from train.data.formats.json_reader import elements, is_a_row_a_line
from train.data.formats.source import Source
from train.data.formats.text_format import TextFormat, TextRow


class JsonLines(TextFormat):
    """A row of JSON a line, not parsed."""

    name, title, endings = "jsonl", "JSONL", (".jsonl", ".ndjson")

    def by_content(self, start: bytes) -> Format:
        return JSONL if is_a_row_a_line(start) else JSON

    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:
        return ((number, line, len(line)) for number, line in filled_lines(file, start))


class JsonValues(TextFormat):
    """Rows of JSON over several lines."""

    name, title, endings = "json", "JSON", (".json",)
    begins_at_any_row = False

    def by_content(self, start: bytes) -> Format:
        return JSONL.by_content(start)

    def row_command(self, source: Source, number: int) -> str:
        return f"{source.printed_by} | tail -n +{number} | head -c 2000"

    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:
        return elements(file, source)


JSONL, JSON = JsonLines(), JsonValues()
