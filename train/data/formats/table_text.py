"""CSV and TSV, whose first row names the columns."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator
from typing import Any

from train.chat.bad_row import BadRowError
from train.data.formats.file_lines import LONGEST_ROW_BYTES, decoded, numbered
from train.data.formats.format import Raw
from train.data.formats.source import Source, wrong
from train.data.formats.text_format import TextFormat, TextRow


class Csv(TextFormat):
    """Rows by the names in the first one; a row with more or fewer fields is bad."""

    name, title, endings = "csv", "CSV", (".csv",)

    def mark(self, first: str) -> str:
        """Return what separates the fields of a file, by its first line."""
        if "," in first:
            return ","
        return next((mark for mark in "\t;" if mark in first), ",")

    def rows(self, file: Any, source: Source, start: int = 0) -> Iterator[TextRow]:
        csv.field_size_limit(LONGEST_ROW_BYTES)
        texts = (decoded(line) for _, line in numbered(file))
        first = next(texts, "")
        mark = self.mark(first)
        names = next(csv.reader([first], delimiter=mark), [])
        _refuse_equal(names, mark, source)
        if start:
            file.seek(start)
        reader, number = csv.reader(texts, delimiter=mark), 2
        try:
            for fields in reader:
                if any(field.strip() for field in fields):
                    row: Raw = dict(zip(names, fields, strict=False))
                    if len(fields) != len(names):
                        what = f"has {len(fields)} fields, the first row has {len(names)}"
                        row = BadRowError(what)
                    yield number, row, sum(map(len, fields))
                number = reader.line_num + 2
        except csv.Error as error:
            raise wrong(
                source.path,
                f"cannot be read at line {number}: {error}",
                self.row_command(source, number),
            ) from error


class Tsv(Csv):
    """The same with tabs."""

    name, title, endings = "tsv", "TSV", (".tsv",)

    def mark(self, first: str) -> str:
        return "\t"


def _refuse_equal(names: list[str], mark: str, source: Source) -> None:
    """Raise UserError for a name that several columns have; any number may be without a name."""
    equal = next((name for name in names if name.strip() and names.count(name) > 1), None)
    if equal is None:
        return
    places = [place for place, name in enumerate(names, 1) if name == equal]
    header = io.StringIO()
    csv.writer(header, delimiter=mark, lineterminator="").writerow(
        f"{name}_{place}" if place in places[1:] else name for place, name in enumerate(names, 1)
    )
    renamed = f"renamed.{source.format}"
    raise wrong(
        source.path,
        f"has a column `{equal}` more than once: columns {' and '.join(map(str, places))}",
        f"(echo {shlex.quote(header.getvalue())}; {source.printed_by} | tail -n +2) > {renamed}"
        f"   # and --data {renamed}; the first is then the one named `{equal}`",
    )
