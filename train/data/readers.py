"""Readers of the rows of every file format, in blocks that take little memory."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.chat.bad_row import BadRowError
from train.data import text_files as lines
from train.data.rows import TOO_LONG
from train.data.sources import Source, wrong
from train.data.text_files import WrongJsonError, decoded, elements, numbered

_BLOCK_BYTES = 1 << 18  # a quarter of a second's work: a stop waits for blocks in progress
_BLOCK_ROWS = 8192
_CHUNK_BYTES = 1 << 18

# A row of JSON is not parsed yet; a line of text is a row already.
Raw = bytes | str | dict[str, Any] | BadRowError


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a file with their positions: line numbers in a text file, else counted from 1.

    `rows` may be an Arrow record batch, which is turned into rows where it is tokenised. `at_bytes`
    is how much of the file had been read when the block was made.
    """

    path: Path
    numbers: list[int]
    rows: Any
    at_bytes: int = 0

    def __iter__(self) -> Iterator[tuple[int, Raw]]:
        rows = self.rows if isinstance(self.rows, list) else self.rows.to_pylist()
        return zip(self.numbers, rows, strict=True)

    def cut(self, num_rows: int) -> Block:
        """Return a block of the first `num_rows` rows."""
        return Block(self.path, self.numbers[:num_rows], self.rows[:num_rows], self.at_bytes)


def read_blocks(source: Source) -> Generator[Block]:
    """Yield all rows of a file. Raises OSError, and UserError if the file is damaged."""
    with saying_damage(source):
        if source.format == "parquet":
            yield from _parquet(source.path)
        elif source.format == "arrow":
            yield from _arrow(source.path)
        else:
            with source.path.open("rb", buffering=0) as raw:
                file = decompressed(raw, source)  # closes `raw` once nothing refers to it
                yield from _blocks(rows_in(file, source), source.path, raw)


@contextmanager
def saying_damage(source: Source) -> Iterator[None]:
    """Turn errors about the bytes of a file into UserError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise wrong(
            source.path, f"is damaged: {error}", "fetch it again from its source"
        ) from error


def rows_in(file: Any, source: Source, start: int = 0) -> Iterator[tuple[int, Raw, int]]:
    """Yield the rows of a text format, each with its position and its size in bytes.

    Reading begins at byte `start`, where a row must begin; positions then count from 2. `file` is
    read to the end of the row that was yielded and no further, except for rows of several lines.
    """
    if source.format == "json":
        return _of_json(file, source)
    if source.format in ("csv", "tsv"):
        return _table(file, source, start)
    return (_texts if source.format == "text" else _lines)(file, start)


def decompressed(raw: Any, source: Source) -> Any:
    """Return an open file without its compression."""
    import pyarrow as pa

    if not source.compression:
        return io.BufferedReader(raw, _CHUNK_BYTES)
    # The descriptor remains that of `raw`, so its position shows how far reading has come.
    stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), source.compression)
    return io.BufferedReader(_Decompressed(stream), _CHUNK_BYTES)


def _blocks(rows: Iterable[tuple[int, Raw, int]], path: Path, raw: Any) -> Iterator[Block]:
    """Combine rows, each with its position and its size in bytes, into blocks."""
    numbers: list[int] = []
    some: list[Raw] = []
    num_bytes = 0
    for number, row, size in rows:
        numbers.append(number)
        some.append(row)
        num_bytes += size
        if num_bytes >= _BLOCK_BYTES or len(some) >= _BLOCK_ROWS:
            yield Block(path, numbers, some, raw.tell())
            numbers, some, num_bytes = [], [], 0
    if some:
        yield Block(path, numbers, some, raw.tell())


def _of_json(file: Any, source: Source) -> Iterator[tuple[int, Raw, int]]:
    try:
        yield from elements(file)
    except WrongJsonError as error:
        raise wrong(source.path, error.what, f"{source.printed_by} | {error.command}") from error


def _lines(file: Any, start: int) -> Iterator[tuple[int, Raw, int]]:
    for number, line in _numbered_from(file, start):
        if not line.isspace():
            yield number, line, len(line)


def _texts(file: Any, start: int) -> Iterator[tuple[int, Raw, int]]:
    for number, line in _numbered_from(file, start):
        if not line.isspace():
            text = decoded(line.rstrip(b"\r\n"))
            yield number, TOO_LONG if len(line) > lines.LONGEST_ROW_BYTES else text, len(line)


def _numbered_from(file: Any, start: int) -> Iterator[tuple[int, bytes]]:
    if start:
        file.seek(start)
    return numbered(file, 2 if start else 1)


def _table(file: Any, source: Source, start: int) -> Iterator[tuple[int, Raw, int]]:
    """Yield CSV or TSV rows by the names in the first row; one with more or fewer fields is bad."""
    csv.field_size_limit(lines.LONGEST_ROW_BYTES)
    counted = _Counted(decoded(line) for _, line in numbered(file))
    first = next(iter(counted), "")
    mark = "\t" if source.format == "tsv" or ("\t" in first and "," not in first) else ","
    if mark == "," and "," not in first and ";" in first:
        mark = ";"
    names = next(csv.reader([first], delimiter=mark), [])
    _refuse_equal(names, mark, source)
    if start:
        file.seek(start)
    reader, number = csv.reader(counted, delimiter=mark), counted.num + 1
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                row: Raw = dict(zip(names, fields, strict=False))
                if len(fields) != len(names):
                    row = BadRowError(f"has {len(fields)} fields, the first row has {len(names)}")
                yield number, row, sum(map(len, fields))
            number = counted.num + 1
    except csv.Error as error:
        raise wrong(
            source.path,
            f"cannot be read at line {number}: {error}",
            f"{source.printed_by} | sed -n '{number}{{p;q}}' | head -c 2000",
        ) from error


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


class _Counted:
    """An iterable of lines that counts the lines taken."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self.num = lines, 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.num += 1
            yield line


def _parquet(path: Path) -> Iterator[Block]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        of_all = file.metadata
        size = sum(of_all.row_group(i).total_byte_size for i in range(of_all.num_row_groups))
        rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES * of_all.num_rows // max(1, size)))
        total = path.stat().st_size
        yield from _numbered_batches(
            file.iter_batches(batch_size=rows, use_threads=False), path, total, of_all.num_rows
        )


def _arrow(path: Path) -> Iterator[Block]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as mapped:
        total = path.stat().st_size
        for batch in _numbered_batches(arrow_batches(mapped), path, total, 0):
            yield Block(path, batch.numbers, batch.rows, mapped.tell())


def arrow_batches(mapped: Any) -> Iterator[Any]:
    """Return the record batches of an Arrow file, or of a stream, as `datasets` saves them."""
    import pyarrow as pa

    try:
        file = pa.ipc.open_file(mapped)
    except pa.ArrowInvalid:
        mapped.seek(0)
        return iter(pa.ipc.open_stream(mapped))
    return (file.get_batch(i) for i in range(file.num_record_batches))


def _numbered_batches(batches: Any, path: Path, total: int, num_rows: int) -> Iterator[Block]:
    at = 0
    for batch in batches:
        size = max(1, batch.num_rows * _BLOCK_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, min(size, _BLOCK_ROWS)):
            some = batch.slice(start, min(size, _BLOCK_ROWS))
            numbers = list(range(at + 1, at + 1 + some.num_rows))
            at += some.num_rows
            yield Block(path, numbers, some, total * at // max(num_rows, at, 1))


class _Decompressed(io.RawIOBase):
    """An Arrow stream with the interface that Python's buffered reader needs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, into: Any) -> int:
        """Fill `into` and return the number of bytes; 0 at the end."""
        data = self._stream.read(len(into))
        into[: len(data)] = data
        return len(data)
