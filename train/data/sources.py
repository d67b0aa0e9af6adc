"""The files that a data path stands for, and their formats. Uses only the standard library."""

from __future__ import annotations

import errno
import gzip
import json
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.data.text_files import LONGEST_ROW_BYTES, is_a_row_a_line

Format = Literal["jsonl", "json", "csv", "tsv", "parquet", "arrow", "text"]
Compression = Literal["", "gzip", "zstd"]

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_BINARY: tuple[Format, ...] = ("parquet", "arrow")
NEEDED = "JSONL, JSON, CSV, TSV, Parquet or text lines, also .gz or .zst; or a folder of these"
_LOOKED_AT_BYTES = 65536
_MARK = b"\xef\xbb\xbf"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAGIC: dict[bytes, Format] = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_FOREIGN = {
    b"PK\x03\x04": ("a zip archive", "unzip {}"),
    b"SQLite format 3": ("SQLite", f"--data PATH: {NEEDED}"),
    b"\xff\xfe": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > utf8{1}"),
    b"\xfe\xff": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > utf8{1}"),
    b"version https://git-lfs": ("a git-lfs pointer", "git lfs pull"),
}
_OF_DATASETS = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")


@dataclass(frozen=True, slots=True)
class Source:
    """One file of rows."""

    path: Path
    format: Format
    compression: Compression = ""

    @property
    def name(self) -> str:
        """The format and compression, for people to read."""
        return " ".join(filter(None, (self.format, self.compression)))

    @property
    def is_text(self) -> bool:
        """True if it has lines that a person can be pointed to."""
        return self.format not in _BINARY

    @property
    def printed_by(self) -> str:
        """The command that prints the text of the file."""
        command = {"": "cat", "gzip": "zcat", "zstd": "zstdcat"}[self.compression]
        return f"{command} {shlex.quote(str(self.path))}"


def find_sources(path: Path) -> list[Source]:
    """Return the files at `path`, a file or a folder, sorted by name.

    Raises UserError, with what to type next, for a path that is missing, empty or of an unsupported
    kind.
    """
    try:
        about = path.stat()  # before opening it: opening a pipe would wait forever
        if not stat.S_ISDIR(about.st_mode):
            return [_source(path, about.st_mode)]
        return _of_folder(path)
    except OSError as error:
        raise UserError(
            f"cannot read the data {path}: {error.strerror}",
            do=f"--data PATH: {NEEDED}",
            code=ExitCode.DATA,
        ) from error


def _source(path: Path, mode: int) -> Source:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")
    with path.open("rb") as file:
        start = _start_of(file)
    if not start.strip(_MARK + b" \t\r\n") and len(start) < _LOOKED_AT_BYTES:
        raise wrong(path, "is empty" if not start else "has no rows", f"--data PATH: {NEEDED}")
    for magic, (name, do) in _FOREIGN.items():
        if start.startswith(magic):
            raise wrong(path, f"is {name}", do.format(shlex.quote(str(path)), _suffix(path)))
    compression: Compression = ""
    if start.startswith(_GZIP):
        compression, start = "gzip", _unzipped(path)
    elif start.startswith(_ZSTD):
        compression = "zstd"
    return Source(path, _format(path, start, compression), compression)


def _start_of(file: Any) -> bytes:
    """Return the first bytes; if they are of a long line of JSON, also those of the next line."""
    start: bytes = file.read(_LOOKED_AT_BYTES)
    text = start.removeprefix(_MARK).strip()
    if text.startswith(b"{") and b"\n" not in text and len(start) == _LOOKED_AT_BYTES:
        start += file.readline(LONGEST_ROW_BYTES) + file.read(_LOOKED_AT_BYTES)
    return start


def _unzipped(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return _start_of(file)
    except (EOFError, gzip.BadGzipFile) as error:
        raise wrong(path, f"is damaged: {error}", f"gzip -t {shlex.quote(str(path))}") from error


def _format(path: Path, start: bytes, compression: Compression) -> Format:
    """Return the format, from the first bytes, or from the name if they do not tell."""
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            return name
    named = FORMATS.get(_suffix(path))
    if named in _BINARY and _is_stream(start):
        return "arrow"
    if named in _BINARY:
        raise wrong(path, f"is no {named} file", f"--data PATH: {NEEDED}")
    if named in ("text", "csv", "tsv") or compression == "zstd":
        return named or "jsonl"
    return "jsonl" if is_a_row_a_line(start.removeprefix(_MARK)) else "json"


def _is_stream(start: bytes) -> bool:
    """Return whether a file begins like an Arrow stream, which is what `datasets` saves."""
    return start.startswith(b"\xff\xff\xff\xff")


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _of_folder(folder: Path) -> list[Source]:
    """Return all files of rows below a folder, or those of a dataset that `datasets` saved."""
    if (folder / "dataset_dict.json").is_file():
        return _of_splits(folder)
    if (folder / "state.json").is_file():
        return _saved(folder)
    paths = sorted(
        path
        for path in folder.rglob("*")
        if _suffix(path) in FORMATS
        and path.is_file()
        and path.name not in _OF_DATASETS
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not paths:
        raise wrong(folder, "is a folder without files of rows", f"--data PATH: {NEEDED}")
    return [_source(path, path.stat().st_mode) for path in paths]


def _of_splits(folder: Path) -> list[Source]:
    splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
    if "train" not in splits:
        first = shlex.quote(str(folder / splits[0])) if splits else "PATH"
        raise wrong(
            folder, f"has no split `train`; there are: {', '.join(splits)}", f"--data {first}"
        )
    return _saved(folder / "train")


def _saved(folder: Path) -> list[Source]:
    """Return the files that `Dataset.save_to_disk` wrote, in its order."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    if state.get("_indices_files"):
        raise wrong(
            folder,
            "stores its rows in an order of its own (indices)",
            "save it with save_to_disk anew",
        )
    return [Source(folder / file["filename"], "arrow") for file in state["_data_files"]]


def bad_row(source: Source, number: int, what: str, do: str = "") -> UserError:
    """Return the error for a row, with the command that shows the row unless `do` is better."""
    # A row may have megabytes, and nothing after it needs to be read. One of JSON may have many
    # lines.
    lines = f"tail -n +{number}" if source.format == "json" else f"sed -n '{number}{{p;q}}'"
    command = f"{source.printed_by} | {lines} | head -c 2000"
    skip = "--set data.on_bad_row=skip leaves out such rows"
    return UserError(
        f"{source.path}:{number}: the row {what}",
        do=do or (f"{command}   # {skip}" if source.is_text else skip),
        code=ExitCode.DATA,
    )


def wrong(path: Path, what: str, do: str) -> UserError:
    """Return the error for data that cannot be used."""
    return UserError(f"the data {path} {what}", do=do, code=ExitCode.DATA)
