"""Early checks of the data files: that they exist and begin with valid rows.

All rows are read later, when they are tokenised (train/prepare.py), after the model was fetched.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from launch.files.fetch_data import parse
from rundir.config import DataConfig, RunConfig
from rundir.data_paths import data_paths
from rundir.errors import UserError

_MOST_BYTES = 1024 * 1024
_MOST_FILES = 20


class NoDataError(UserError):
    """A request without training data, of a profile that has none of its own."""

    def __init__(self, profile: str) -> None:
        super().__init__(
            f"{profile} names no training data", do=data_commands(f"./start.sh {profile}")
        )


def data_commands(typed: str) -> str:
    """Return what to type instead of the command `typed`, which lacks training data."""
    return (
        f"{typed} --data FILE.jsonl   # rows with `prompt` and `response`; more in docs/data.md\n"
        f"  → {typed} --demo   # a few steps on data that come with the clone"
    )


def check_data(config: RunConfig) -> None:
    """Raise UserError unless the named data files exist and begin with rows to train on."""
    data = config.data
    if not data.path:
        raise NoDataError(config.profile)
    if data.eval_fraction >= 1:
        raise UserError(
            f"data.eval_fraction is {data.eval_fraction:g}: nothing would be left to train on",
            do="--set data.eval_fraction=0.05",
        )
    if data.streaming and data.held_out_share:
        raise UserError(
            f"data.eval_fraction is {data.eval_fraction:g}: with data.streaming nobody has read "
            "all rows to know which are held out",
            do="--set data.eval_path=FILE, or data.eval_fraction=0",
        )
    paths, held_out = data_paths(data.path), data_paths(data.eval_path)
    if data.streaming and (len(paths) > 1 or paths[0].weight != 1):
        raise UserError(
            f"data.streaming is of one path, without a weight, and there are: {data.path}",
            do="put the files into one folder, --data FOLDER; or --set data.streaming=false",
        )
    if any(held_path.weight != 1 for held_path in held_out):
        raise UserError(
            f"data.eval_path is {data.eval_path}: held-out data have no weights",
            do=f"--set data.eval_path={','.join(held_path.path for held_path in held_out)}",
        )
    of_training = [(path, data.max_samples or None) for path in paths]
    for held_path, most_rows in (*of_training, *((held_path, None) for held_path in held_out)):
        if held_path.is_of_hub:
            parse(held_path.path)
        else:
            _check(Path(held_path.path), data, most_rows)


def _check(path: Path, data: DataConfig, most_rows: int | None) -> None:
    from train.data.sources import find_sources

    for source in find_sources(path)[:_MOST_FILES]:
        # Other formats and compressions need libraries to look into.
        if source.format == "jsonl" and source.compression != "zstd":
            _check_rows(source, data, most_rows)


def _check_rows(source: Any, data: DataConfig, most_rows: int | None) -> None:
    """Raise UserError for the first bad row among those that end within the first MiB.

    With `most_rows`, no more of them are looked at: no others are trained on.
    """
    from train.chat.bad_row import BadRowError
    from train.data.columns import check_settings, find_columns
    from train.data.rows import example_of, parsed
    from train.data.sources import bad_row

    columns = None
    for number, line in islice(_first_lines(source), most_rows):
        decides = False
        try:
            row = parsed(line)
            if decides := columns is None:
                columns = find_columns(row, data.columns, only_where=data.only_where)
                check_settings(columns, data.on_long_row)
            only_last = data.loss_on == "last_answer"
            example_of(row, columns, only_where=data.only_where, only_last=only_last)
        except BadRowError as error:
            if data.on_bad_row == "stop" or (decides and columns is None):
                raise bad_row(source, number, error.what, error.do) from error


def _first_lines(source: Any) -> Iterator[tuple[int, bytes]]:
    with source.path.open("rb") as raw, gzip.open(raw) as unpacked:
        start: bytes = (unpacked if source.compression else raw).read(_MOST_BYTES)
    *lines, last = start.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if len(start) < _MOST_BYTES:  # otherwise the last line may be cut off
        lines.append(last)
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())
