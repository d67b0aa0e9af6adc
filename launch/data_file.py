"""The data files before anything slow begins: are they there, and do they begin as they must.

All rows are read when they are tokenised (train/prepare.py), after the model has been fetched.
"""

from __future__ import annotations

import errno
import shlex
import stat
import sys
from pathlib import Path

from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_LOOKED_AT_BYTES = 1024 * 1024
_NEEDED = "a .jsonl file: one JSON object a line, with `prompt` and `response`"
_FORMATS = {
    b"PAR1": "Parquet", b"ARROW1": "Arrow", b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive",
    b"\x28\xb5\x2f\xfd": "zstd", b"SQLite format 3": "SQLite", b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text", b"version https://git-lfs": "a git-lfs pointer",
}  # fmt: skip
_MEND = {"gzip": "gunzip {}", "zstd": "unzstd {}", "a zip archive": "unzip {}",
         "UTF-16 text": "iconv -f UTF-16 -t UTF-8 {} > rows.jsonl",
         "a git-lfs pointer": "git lfs pull"}  # fmt: skip
_WRITE = (
    "import json, sys; out = open('rows.jsonl', 'w'); "
    "[out.write(json.dumps(row) + '\\n') for row in rows]; out.close()"
)
_READ = {
    "Parquet": "import pyarrow.parquet; rows = pyarrow.parquet.read_table({!r}).to_pylist()",
    "comma-separated text": "import csv; rows = list(csv.DictReader(open({!r}, newline='')))",
    "tab-separated text": (
        "import csv; rows = list(csv.DictReader(open({!r}, newline=''), delimiter='\\t'))"
    ),
    "one JSON array": "import json; rows = json.load(open({!r}, encoding='utf-8-sig'))",
}
_SEPARATED = {".csv": "comma-separated text", ".tsv": "tab-separated text"}


def check_data(config: RunConfig) -> None:
    """Raise UserError unless the named data files are there and begin with rows to train on."""
    if not config.data.path:
        raise UserError(
            f"{config.profile} names no training data",
            do=f"./start.sh {config.profile} --data FILE.jsonl   # rows with `prompt`, `response`",
            code=ExitCode.DATA,
        )
    for path in filter(None, (config.data.path, config.data.eval_path)):
        _check_file(Path(path))


def _check_file(path: Path) -> None:
    try:
        found = path.stat()  # before it is opened: opening a pipe would wait for ever
        if stat.S_ISDIR(found.st_mode):
            raise _wrong(path, "is a folder", _within(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with path.open("rb") as file:
            start = file.read(_LOOKED_AT_BYTES)
    except OSError as error:
        raise UserError(
            f"cannot read the data {path}: {error.strerror}",
            do=f"--data PATH names {_NEEDED}",
            code=ExitCode.DATA,
        ) from error
    if not start.strip(b"\xef\xbb\xbf \t\r\n") and len(start) < _LOOKED_AT_BYTES:
        raise _wrong(path, "is empty" if not start else "has no rows", f"--data PATH: {_NEEDED}")
    _check_format(path, start)
    _check_rows(path, start)


def _check_format(path: Path, start: bytes) -> None:
    """Raise UserError, with the command that mends it, for what is no JSON lines at all."""
    found = next((name for magic, name in _FORMATS.items() if start.startswith(magic)), None)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if found is None and path.suffix.lower() in _SEPARATED and not text.startswith(b"{"):
        found = _SEPARATED[path.suffix.lower()]
    if found is None and text.startswith(b"[") and not _is_row(text.partition(b"\n")[0]):
        found = "one JSON array"
    if found is None:
        return
    do = _MEND.get(found, f"--data PATH: {_NEEDED}").format(shlex.quote(str(path)))
    if found in _READ:
        program = f"{_READ[found].format(str(path))}; {_WRITE}"
        do = f"{shlex.join([sys.executable, '-c', program])}   # then --data rows.jsonl"
    raise _wrong(path, f"is {found}, not JSON lines", do)


def _is_row(line: bytes) -> bool:
    """Whether a line that begins like an array is an array of plain values: a wrong row."""
    return b"{" not in line and line.rstrip().endswith(b"]")


def _check_rows(path: Path, start: bytes) -> None:
    """Raise UserError for the first wrong row among those that end within `start`."""
    from train.rows import rows_of

    *lines, last = start.split(b"\n")
    if len(start) < _LOOKED_AT_BYTES:  # else the last line may go on
        lines.append(last)
    for _ in rows_of(lines, path):
        pass


def _within(folder: Path) -> str:
    """What in a folder may have been meant."""
    names = sorted(one.name for one in folder.glob("*.jsonl"))
    return f"--data {shlex.quote(str(folder / names[0]))}" if names else f"--data PATH: {_NEEDED}"


def _wrong(path: Path, what: str, do: str) -> UserError:
    return UserError(f"the data {path} {what}", do=do, code=ExitCode.DATA)
