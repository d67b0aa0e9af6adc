"""The formats that are known. A new one is a line in FORMATS, and its class in a file beside this.

Nothing else has to name it: folders are searched for its endings, datasets of the Hub too, and its
files are read for preparation and streaming alike.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import PurePath

from train.data.formats.arrow import Arrow
from train.data.formats.format import Block, Format
from train.data.formats.json_rows import JSON, JSONL
from train.data.formats.parquet import Parquet
from train.data.formats.source import COMPRESSIONS, Source, naming_damage
from train.data.formats.table_text import Csv, Tsv
from train.data.formats.text_lines import TextLines

FORMATS: list[Format] = [JSONL, JSON, Csv(), Tsv(), Parquet(), Arrow(), TextLines()]
_TITLES = ", ".join(form.title for form in FORMATS[:-1])
NEEDED = f"{_TITLES} or {FORMATS[-1].title}, also .gz or .zst; or a folder of these"


def ending_of(path: PurePath) -> str:
    """Return the ending of a file's name, in lower case, without that of its compression."""
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] in COMPRESSIONS:
        endings.pop()
    return endings[-1] if endings else ""


def format_named(path: PurePath) -> Format | None:
    """Return the format that a file's name tells; None if it tells none."""
    ending = ending_of(path)
    return next((form for form in FORMATS if ending in form.endings), None)


def format_of(source: Source) -> Format:
    """Return the format of a file."""
    return next(form for form in FORMATS if form.name == source.format)


def read_blocks(source: Source) -> Generator[Block]:
    """Yield all rows of a file. Raises OSError, and UserError if the file is damaged."""
    with naming_damage(source):
        yield from format_of(source).blocks(source)


def first_rows(source: Source, num_rows: int) -> Block:
    """Return the first rows of a file, as many as are in its first block at most."""
    with closing(read_blocks(source)) as blocks:
        return next(blocks).cut(num_rows)
