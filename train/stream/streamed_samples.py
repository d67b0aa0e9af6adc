"""Streamed training data: ranks read and tokenise them while they train.

Each rank takes its rows of a step (train/stream/step_share.py) and makes samples of them, in a
thread, some steps ahead. Then all ranks exchange their samples, which costs little compared to a
step, so that everything after it is as with prepared data: rows are packed, and tokens divided
evenly.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, TypeVar

from ranks.group import Ranks
from rundir.config import RunConfig
from rundir.data_paths import name_of
from rundir.errors import ExitCode, UserError
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.prepared import Prepared
from train.batches.course import Course
from train.data.arrow_file import BAD_ROWS, MOST_LISTED, bad_row_line
from train.data.cache import tokenizer_digest
from train.data.dataset import Sample
from train.data.path_samples import left_out
from train.data.samples import Counts, recipes
from train.stream.piece_reader import PieceReader
from train.stream.pieces import Pieces
from train.stream.step_share import Share, StreamRows, joined, order_of, sample_of, shares

_NUM_AHEAD = 4  # steps
_TOLD_AGAIN = 10  # times as many rows left out as at the last report

Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """Items of an endless generator, made at most `num_ahead` items before they are taken.

    A thread, not a process: the costly part (the tokenizer) releases the GIL, and nothing may be
    forked after CUDA was initialised.
    """

    def __init__(self, items: Generator[Item], num_ahead: int) -> None:
        self._items, self._room = items, threading.Semaphore(num_ahead)
        self._made: SimpleQueue[Item | BaseException] = SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._make, name="data", daemon=True)
        self._thread.start()

    def next(self) -> Item:
        """Return the next item. Raises what the generator raised in its place."""
        item = self._made.get()
        self._room.release()
        if isinstance(item, BaseException):
            self._made.put(item)  # nothing comes after it
            raise item
        return item

    def close(self) -> None:
        """Stop making items; return once the thread has ended."""
        self._is_closed = True
        self._room.release()
        self._thread.join()

    def _make(self) -> None:
        try:
            while self._room.acquire() and not self._is_closed:
                self._made.put(next(self._items))
        except BaseException as error:  # noqa: BLE001 - whatever it is, `next` raises it
            self._made.put(error)
        finally:
            self._items.close()


class StreamedSamples:
    """The samples of one step at a time. Every method is called by all ranks together."""

    def __init__(
        self,
        *,
        config: RunConfig,
        run: RunDir,
        prepared: Prepared,
        ranks: Ranks,
        events: EventWriter,
        course: Course,
    ) -> None:
        """Open the pieces that were written for the run.

        Raises OSError if they are gone, and UserError if this node has another tokenizer.
        """
        self.course = course
        self._config, self._run, self._ranks, self._events = config, run, ranks, events
        self._model_path = Path(prepared.model_path)
        _check_tokenizer(config, prepared)
        self._pieces = Pieces.load(Path(prepared.train.path))
        self._samples: Sequence[Sample] = []
        self._next_step = -1
        self._ahead: Ahead[Share] | None = None
        self._counts, self._tell_at, self._num_listed = Counts(), 1, 0

    def __len__(self) -> int:
        """Return the number of rows in an epoch."""
        return self._pieces.num_rows

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]

    def length(self, index: int) -> int:
        """Return the number of tokens in a sample of this step."""
        return len(self._samples[index][0])

    def begin(self, step: int) -> None:
        """Start reading for `step` (from 0) and those after it, before they are asked for."""
        if self._ahead is not None:
            self._ahead.close()
        rows = self._rows(self._ranks.rank, self._ranks.world_size)
        made = shares(rows, self._pieces.columns, self._config, self._model_path, step)
        self._ahead, self._next_step = Ahead(made, _NUM_AHEAD), step

    def step_indices(self, step: int) -> Sequence[int]:
        """Load the samples of `step` (from 0), and return their indices.

        Raises UserError, on all ranks, for a bad row, if that is to end a run, and for a file that
        has changed.
        """
        if self._ahead is None or step != self._next_step:
            self.begin(step)
        assert self._ahead is not None
        self._next_step = step + 1
        try:
            own = self._ahead.next()
        except UserError as error:
            own = Share(error=error)
        self._list(own, step)
        share = joined(self._ranks.exchange(replace(own, bad=())))
        if share.error is not None:
            raise share.error
        self._samples = [sample_of(ids, ranges) for _, ids, ranges in share.samples]
        self._count(share.counts)
        return range(len(self._samples))

    def origins(self, step: int) -> list[tuple[str, int]]:
        """Return the file and the number of each row of `step` (from 0), read once more."""
        with closing(self._rows(0, 1)) as rows:
            _, rows_ = next(rows.steps(step))
        return [(str(row.source.path), row.number) for row in rows_]

    def end(self) -> None:
        """Stop reading, and report what was left out."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        if self._ranks.is_first:
            counts = self._counts
            self._events.emit(
                "mark",
                "data.streamed",
                num_rows=counts.num_rows,
                num_bad=counts.num_bad,
                num_unwanted=counts.num_unwanted,
                num_too_long=counts.num_too_long,
                num_truncated=counts.num_truncated,
                num_split=counts.num_split,
                num_rewritten=counts.num_rewritten,
            )
            self._say(self._summary())

    def _rows(self, rank: int, world_size: int) -> StreamRows:
        order, reader = (
            order_of(self._pieces, self.course),
            PieceReader(self._pieces.files, self._say),
        )
        return StreamRows(order, reader, self.course, rank=rank, world_size=world_size)

    def _list(self, share: Share, step: int) -> None:
        """List the bad rows of this rank in a file."""
        if not share.bad or self._num_listed >= MOST_LISTED:
            return
        self._num_listed += len(share.bad)
        name = f"{name_of(self._config.data.path)}.rank{self._ranks.rank}.{BAD_ROWS}"
        with (self._run.data / name).open("a", encoding="ascii") as file:
            for row, error in share.bad:
                file.write(bad_row_line(row.source.path, row.number, error, step=step + 1))

    def _count(self, counts: Counts) -> None:
        self._counts.add(counts)
        left_out = self._counts.num_bad + self._counts.num_too_long
        if left_out >= self._tell_at:
            self._tell_at = left_out * _TOLD_AGAIN
            if self._ranks.is_first:
                self._say(self._summary())

    def _summary(self) -> str:
        """Return a line about what became of the rows, so that none is left out silently."""
        counts = self._counts
        parts = [f"{counts.num_rows:,} rows streamed"]
        if counts.num_bad:
            parts.append(f"{counts.num_bad:,} bad ones left out (data/*.{BAD_ROWS})")
        return "; ".join([*parts, *left_out(asdict(counts), recipes(self._config)[0])])

    def _say(self, text: str) -> None:
        self._events.emit("log", "line", text=f"[Rank {self._ranks.rank}] DATA: {text}")


def _check_tokenizer(config: RunConfig, prepared: Prepared) -> None:
    """Raise UserError if this node would give texts other tokens than the data were tried with."""
    was = prepared.train.made_of.get("tokenizer")
    digest = tokenizer_digest(Path(prepared.model_path), recipes(config)[0])
    if was not in (None, digest):
        raise UserError(
            f"the tokenizer of {prepared.model_path} is {digest} here, and was {was} when the data "
            "were tried",
            do="the same files, and the same version of transformers, on all nodes; start it again",
            code=ExitCode.DATA,
        )
