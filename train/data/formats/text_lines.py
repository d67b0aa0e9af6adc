"""Lines of plain text, each of them a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from train.data.formats import file_lines
from train.data.formats.file_lines import TOO_LONG, decoded, filled_lines
from train.data.formats.source import Source
from train.data.formats.text_format import TextFormat, TextRow


class TextLines(TextFormat):
    """A text a line."""

    name, title, endings = "text", "text lines", (".txt",)

    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:
        for number, line in filled_lines(file, start):
            text = decoded(line.rstrip(b"\r\n"))
            yield number, TOO_LONG if len(line) > file_lines.LONGEST_ROW_BYTES else text, len(line)
