"""One rank's rows of each step: read from the files, made into samples, sent to the other ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, islice, pairwise
from pathlib import Path

import numpy as np

from rundir.config import RunConfig
from rundir.errors import UserError
from train.batches.course import Course
from train.chat.bad_row import BadRowError
from train.data.columns import Columns
from train.data.dataset import Sample
from train.data.fits_model import check_fits
from train.data.formats.format import Raw
from train.data.formats.source import Source
from train.data.path_samples import load_text_tools
from train.data.samples import Counts, recipes
from train.data.sources import bad_row
from train.data.tokenise import Tokeniser
from train.stream.order import Shuffle, StreamOrder, Window
from train.stream.piece_reader import PieceReader
from train.stream.pieces import Pieces

_LEAST_PIECES = 16  # per window: rows from fewer places would be too similar


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Samples by the position of their row in the step; a row may give none, or several.

    Their ids and ranges are bytes, of which pickle makes much less than of arrays. With an `error`
    there is nothing else.
    """

    samples: Sequence[tuple[int, bytes, bytes]] = ()
    counts: Counts = field(default_factory=Counts)
    bad: Sequence[tuple[StreamRow, BadRowError]] = ()
    error: UserError | None = None


def joined(all_shares: Iterable[Share]) -> Share:
    """Return all samples of a step, in the order of its rows, from the shares of all ranks.

    Of several errors the first rank's is kept.
    """
    samples: list[tuple[int, bytes, bytes]] = []
    counts, errors = Counts(), []
    for share in all_shares:
        samples += share.samples
        counts.add(share.counts)
        errors.append(share.error)
    samples.sort(key=lambda sample: sample[0])
    error = next((error for error in errors if error is not None), None)
    return Share(samples=samples, counts=counts, error=error)


def sample_of(ids: bytes, ranges: bytes) -> Sample:
    """Return the sample of which a share holds these bytes."""
    return np.frombuffer(ids, np.int32), np.frombuffer(ranges, np.int32).reshape(-1, 2)


def shares(
    rows: StreamRows, columns: Columns, config: RunConfig, model_path: Path, first_step: int
) -> Generator[Share]:
    """Yield a rank's share of `first_step` (from 0), and of all steps after it; close `rows`.

    Raises UserError for a bad row, if that is to end a run, for a file that has changed, and for
    samples that the model has no embedding for.
    """
    recipe = recipes(config)[0]
    tokeniser = Tokeniser(*load_text_tools(model_path, recipe), recipe, columns)
    most = Counts()
    with closing(rows):
        for places, some in rows.steps(first_step):
            share = _share_of(places, some, tokeniser)
            if share.bad and config.data.on_bad_row == "stop":
                row, error = share.bad[0]
                raise bad_row(row.source, row.number, error.what, error.do)
            before = most.max_token_id, most.longest_kept
            most.add(share.counts)
            if before != (most.max_token_id, most.longest_kept):
                check_fits(model_path, most.max_token_id, most.longest_kept)
            yield share


def order_of(pieces: Pieces, course: Course) -> StreamOrder:
    """Return the order in which the rows of all pieces are trained on."""
    shuffles = [
        Shuffle(
            draw.from_epoch,
            draw.seed,
            max(_LEAST_PIECES, (draw.shuffle_mib << 20) // pieces.piece_bytes),
        )
        for draw in course.draws
    ]
    return StreamOrder(pieces.table, shuffles)


def _share_of(places: Sequence[int], rows: Sequence[StreamRow], tokeniser: Tokeniser) -> Share:
    made = tokeniser.encoded((i, row.raw) for i, row in enumerate(rows))
    return Share(
        samples=[
            (
                places[sample.row],
                np.array(sample.ids, np.int32).tobytes(),
                np.array(sample.ranges, np.int32).tobytes(),
            )
            for sample in made.samples
        ],
        counts=made.counts,
        bad=[(rows[i], error) for i, error in made.bad],
    )


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A row with its file and position."""

    source: Source
    number: int
    raw: Raw


class StreamRows:
    """Every `world_size`-th row of the order, so that all ranks have the same number.

    Holds this rank's rows of one window.
    """

    def __init__(
        self,
        order: StreamOrder,
        reader: PieceReader,
        course: Course,
        *,
        rank: int,
        world_size: int,
    ) -> None:
        self._order, self._reader, self._course = order, reader, course
        self._rank, self._world_size = rank, world_size

    def steps(self, first: int) -> Generator[tuple[range, list[StreamRow]]]:
        """Yield the positions in the step and the rows, for step `first` (from 0) and all after it.

        Raises UserError for a file that has changed.
        """
        rows = self._rows(self._course.rows(first).start)
        for step in count(first):
            positions = self._course.rows(step)
            own = (self._rank - positions.start) % self._world_size
            places = range(own, len(positions), self._world_size)
            yield places, list(islice(rows, len(places)))

    def close(self) -> None:
        """Close all open files."""
        self._reader.close()

    def _rows(self, position: int) -> Iterator[StreamRow]:
        while True:
            window = self._order.window(position)
            positions = np.arange(position, window.end)
            own = positions[positions % self._world_size == self._rank]
            yield from self._window_rows(window, own)
            position = window.end

    def _window_rows(self, window: Window, positions: np.ndarray) -> Iterator[StreamRow]:
        slots, rows = window.places(positions)
        as_read = np.lexsort((rows, slots))
        bounds = np.searchsorted(slots[as_read], np.arange(len(window.pieces) + 1)).tolist()
        parts = [as_read[begin:end] for begin, end in pairwise(bounds)]
        window_rows: list[StreamRow | None] = [None] * len(positions)
        for at, some in self._reader.rows(window.pieces, [rows[part] for part in parts]):
            source = self._reader.source(int(window.pieces[at]["file"]))
            for index, (number, raw) in zip(parts[at].tolist(), some, strict=True):
                window_rows[index] = StreamRow(source, number, raw)
        for index, row in enumerate(window_rows):
            window_rows[index] = None  # not kept once it is used
            assert row is not None
            yield row
