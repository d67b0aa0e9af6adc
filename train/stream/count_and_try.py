"""Preparation of streamed data, before the ranks start: all rows are counted, and some are tried.

All files are read once to find out how many rows there are and where; this is remembered for each
file. The content is examined only in the first rows of some files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import PreparedData
from train.data.cache import Tools, columns_of_first, end_token_id_of, remarks
from train.data.columns import Columns
from train.data.compare_tokenizers import compare_tokenizers
from train.data.dataset import NUM_SHOWN, marked
from train.data.fits_model import check_fits
from train.data.formats.known import NEEDED, first_rows, format_of
from train.data.formats.source import Source
from train.data.path_samples import decided_by
from train.data.samples import Counts, Recipe, Sample
from train.data.sources import bad_row, find_sources
from train.data.tokenise import Tokeniser
from train.stream.pieces import Pieces, StreamFile, piece_bytes_of, scan_all

_TRIED_ROWS, _TRIED_FILES = 256, 20
_FOLDER = "stream"


def count_and_try(
    path: Path, model_path: Path, recipe: Recipe, tools: Tools, run: RunDir
) -> tuple[PreparedData, list[str], str]:
    """Count the rows at `path`, and try some; write the positions of all below `run.data`.

    Returns what ranks need, some samples as text, and a line to print. Raises UserError if the data
    cannot be read, a row that was tried is wrong, or none of those can be trained on.
    """
    files = [StreamFile.of(source) for source in find_sources(path)]
    piece_bytes = piece_bytes_of(files)
    table = scan_all(files, piece_bytes, recipe.max_samples)
    if not len(table):
        raise UserError(f"{path} has no rows", do=f"--data PATH: {NEEDED}", code=ExitCode.DATA)
    used = [files[at].source for at in np.unique(table["file"]).tolist()]
    columns, shown, counts, more = _try(used, recipe, tools)
    more += compare_tokenizers(used, model_path, recipe, tools)
    check_fits(model_path, counts.max_token_id, counts.longest_kept)
    pieces = Pieces(files=files, table=table, piece_bytes=piece_bytes, columns=columns)
    folder = run.data / _FOLDER
    pieces.save(folder)
    prepared = PreparedData(
        path=str(folder),
        num_samples=pieces.num_rows,
        num_too_long=0,
        longest=recipe.max_seq_length,
        end_token_id=end_token_id_of(columns, *tools),
        is_streamed=True,
        mapped=[str(source.path) for source in used if format_of(source).is_mapped],
        made_of={"files": pieces.fingerprint, **decided_by(recipe, model_path)},
    )
    return prepared, shown, "; ".join([_summary(path, pieces, len(used), recipe, counts), *more])


def _try(
    sources: list[Source], recipe: Recipe, tools: Tools
) -> tuple[Columns, list[str], Counts, list[str]]:
    """Tokenise the first rows of some files; return columns, sample texts, counts and remarks."""
    columns: Columns | None = None
    seen = set[str]()
    samples: list[Sample] = []
    counts = Counts()
    for source in sources[:_TRIED_FILES]:
        block = first_rows(source, _TRIED_ROWS)
        if columns is None:
            columns = columns_of_first(block, recipe, source)
            tokeniser = Tokeniser(*tools, recipe, columns)
        made = tokeniser.encoded(block)
        if made.bad and recipe.on_bad_row == "stop":
            number, error = made.bad[0]
            raise bad_row(source, number, error.what, error.do)
        counts.add(made.counts)
        seen |= made.seen
        samples += made.samples[: NUM_SHOWN - len(samples)]
    assert columns is not None
    if not samples:
        raise _none_left(sources[0].path, counts, recipe)
    more = remarks(seen, columns, recipe, tools[1])
    return columns, [_as_text(sample, tools[0]) for sample in samples], counts, more


def _as_text(sample: Sample, tokenizer: Any) -> str:
    ranges = np.array(sample.ranges).reshape(-1, 2)
    return marked(np.array(sample.ids), ranges, tokenizer=tokenizer)


def _none_left(path: Path, counts: Counts, recipe: Recipe) -> UserError:
    if counts.num_too_long:
        what = f"have more than {recipe.max_seq_length:,} tokens"
        do = f"--set data.max_seq_length={counts.longest}"
    else:
        what, do = "are bad", "--data PATH"
    return UserError(
        f"{path}: all of the first {counts.num_rows:,} rows {what}", do=do, code=ExitCode.DATA
    )


def _summary(path: Path, pieces: Pieces, num_files: int, recipe: Recipe, counts: Counts) -> str:
    """Return a line about what was found, and what has not been examined yet."""
    stops = "ends the run" if recipe.on_bad_row == "stop" else "is left out and listed"
    return (
        f"data: {path.name}: {pieces.columns}; streamed: {pieces.num_rows:,} rows in "
        f"{num_files:,} files, {counts.num_rows:,} of them tried; a bad row {stops} when its turn "
        "comes; nobody looks for duplicates"
    )
