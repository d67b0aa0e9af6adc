"""The files that a data path stands for, and what they are. Uses only the standard library."""

from __future__ import annotations

import errno
import gzip
import json
import shlex
import stat
from pathlib import Path
from typing import Any

from rundir.errors import ExitCode, UserError
from train.data.formats.file_lines import BYTE_ORDER_MARK, LONGEST_ROW_BYTES
from train.data.formats.json_rows import JSONL
from train.data.formats.known import FORMATS, NEEDED, ending_of, format_named, format_of
from train.data.formats.source import COMPRESSION_MAGICS, Compression, Source, wrong

_LOOKED_AT_BYTES = 65536
_FOREIGN = {
    b"PK\x03\x04": ("a zip archive", "unzip {}"),
    b"SQLite format 3": ("SQLite", f"--data PATH: {NEEDED}"),
    b"\xff\xfe": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > utf8{1}"),
    b"\xfe\xff": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8 {0} > utf8{1}"),
    b"version https://git-lfs": ("a git-lfs pointer", "git lfs pull"),
}
_NOT_ROWS = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")


def find_sources(path: Path) -> list[Source]:
    """Return the files at `path`, a file or a folder, sorted by name.

    Raises UserError, with what to type next, for a path that is missing, empty or of an unsupported
    kind.
    """
    try:
        about = path.stat()  # before opening it: opening a pipe would wait forever
        if not stat.S_ISDIR(about.st_mode):
            return [_source(path, about.st_mode)]
        return _folder_sources(path)
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
    if not start.strip(BYTE_ORDER_MARK + b" \t\r\n") and len(start) < _LOOKED_AT_BYTES:
        raise wrong(path, "is empty" if not start else "has no rows", f"--data PATH: {NEEDED}")
    for magic, (name, do) in _FOREIGN.items():
        if start.startswith(magic):
            raise wrong(path, f"is {name}", do.format(shlex.quote(str(path)), ending_of(path)))
    magics = COMPRESSION_MAGICS.items()
    compression: Compression = next((kind for magic, kind in magics if start.startswith(magic)), "")
    if compression == "gzip":
        start = _unzipped(path)
    return Source(path, _format_name(path, start, compression), compression)


def _start_of(file: Any) -> bytes:
    """Return the first bytes; if they are of a long line of JSON, also those of the next line."""
    start: bytes = file.read(_LOOKED_AT_BYTES)
    text = start.removeprefix(BYTE_ORDER_MARK).strip()
    if text.startswith(b"{") and b"\n" not in text and len(start) == _LOOKED_AT_BYTES:
        start += file.readline(LONGEST_ROW_BYTES) + file.read(_LOOKED_AT_BYTES)
    return start


def _unzipped(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            return _start_of(file)
    except (EOFError, gzip.BadGzipFile) as error:
        raise wrong(path, f"is damaged: {error}", f"gzip -t {shlex.quote(str(path))}") from error


def _format_name(path: Path, start: bytes, compression: Compression) -> str:
    """Return the format, from the first bytes, or from the name if they do not tell."""
    for form in FORMATS:
        if form.magics and start.startswith(form.magics):
            return form.name
    named = format_named(path) or JSONL
    if named.magics:
        raise wrong(path, f"is no {named.name} file", f"--data PATH: {NEEDED}")
    if compression == "zstd":  # its text cannot be looked at here
        return named.name
    return named.by_content(start.removeprefix(BYTE_ORDER_MARK)).name


def _folder_sources(folder: Path) -> list[Source]:
    """Return all files of rows below a folder, or those of a dataset that `datasets` saved."""
    if (folder / "dataset_dict.json").is_file():
        return _train_split(folder)
    if (folder / "state.json").is_file():
        return _saved(folder)
    paths = sorted(
        path
        for path in folder.rglob("*")
        if format_named(path) is not None
        and path.is_file()
        and path.name not in _NOT_ROWS
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not paths:
        raise wrong(folder, "is a folder without files of rows", f"--data PATH: {NEEDED}")
    return [_source(path, path.stat().st_mode) for path in paths]


def _train_split(folder: Path) -> list[Source]:
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
    command = format_of(source).row_command(source, number)
    skip = "--set data.on_bad_row=skip leaves out such rows"
    return UserError(
        f"{source.path}:{number}: the row {what}",
        do=do or (f"{command}   # {skip}" if command else skip),
        code=ExitCode.DATA,
    )
