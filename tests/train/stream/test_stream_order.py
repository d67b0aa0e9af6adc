"""Every row once per epoch, in an order that does not depend on who asks, or where they begin."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.data.test_readers import write
from tests.train.stream.test_pieces import cache
from train.batches.course import Course
from train.data.formats.source import Source
from train.data.sources import find_sources
from train.stream.order import Shuffle, StreamOrder
from train.stream.piece_reader import PieceReader
from train.stream.pieces import PIECE, StreamFile, scan_all
from train.stream.step_share import StreamRow, StreamRows

__all__ = ["cache"]  # its fixture

BATCH, SEED = 10, 7
KINDS = ("jsonl", "jsonl.gz", "csv", "parquet", "arrow", "json", "jsonl.zst")


def table_of(num_rows: list[int], groups: list[int]) -> np.ndarray:
    table = np.zeros(len(num_rows), PIECE)
    table["num_rows"], table["group"] = num_rows, groups
    table["start"] = np.arange(len(num_rows))  # to recognise a piece
    return table


def epoch_of(order: StreamOrder, epoch: int) -> list[tuple[int, int]]:
    """Return (piece, row within it) at each position."""
    found, position, end = [], epoch * order.num_rows, (epoch + 1) * order.num_rows
    while position < end:
        window = order.window(position)
        assert (window.epoch, window.begin) == (epoch, position)
        slots, rows = window.places(np.arange(window.begin, window.end))
        found += list(zip(window.pieces["start"][slots].tolist(), rows.tolist(), strict=True))
        position = window.end
    assert position == end
    return found


@pytest.mark.parametrize("each", [1, 3, 100])
@pytest.mark.parametrize("seed", range(5))
def test_every_row_is_once_in_every_epoch_and_each_epoch_has_an_order_of_its_own(
    seed: int, each: int
) -> None:
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 20, draw.integers(1, 40)).tolist()
    groups = np.cumsum(draw.random(len(sizes)) < 0.7).tolist()
    order = StreamOrder(table_of(sizes, groups), [Shuffle(0, seed, each)])
    every = sorted((piece, row) for piece, size in enumerate(sizes) for row in range(size))
    epochs = [epoch_of(order, epoch) for epoch in (0, 1, 5, 1)]
    assert [sorted(epoch) for epoch in epochs] == [every] * 4
    assert epochs[1] == epochs[3]
    if len(every) > 5:
        assert epochs[0] != epochs[1]
        assert epochs[0] != every


def test_rows_of_a_window_are_mixed_and_those_of_a_group_stay_in_its_windows() -> None:
    order = StreamOrder(table_of([50] * 40, [0] * 20 + list(range(1, 21))), [Shuffle(0, 0, 8)])
    found = epoch_of(order, 0)
    pieces = [[piece for piece, _ in found[i : i + 400]] for i in range(0, len(found), 400)]
    assert all(len(set(window)) == 8 for window in pieces)
    assert all(len(set(window[:50])) > 4 for window in pieces)
    firsts = list(dict.fromkeys(i for i, window in enumerate(pieces) for p in window if p < 20))
    assert firsts == list(range(firsts[0], firsts[-1] + 1))  # one file, read through once


def test_a_window_is_where_any_of_its_positions_asks_for_it() -> None:
    table, shuffles = table_of([7] * 30, list(range(30))), [Shuffle(0, 3, 4)]
    order = StreamOrder(table, shuffles)
    for position in (0, 27, 28, 209, 210, 419, 1000):
        window = order.window(position)
        assert window.begin <= position < window.end
        again = StreamOrder(table, shuffles).window(window.begin)
        at = np.array([position])
        assert [part.tolist() for part in window.places(at)] == [
            part.tolist() for part in again.places(at)
        ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write files of all kinds, each row with an id of its own."""
    made, number = tmp_path_factory.mktemp("files"), 0
    for i, kind in enumerate(KINDS):
        size = (40, 7, 1, 90, 13, 25, 3)[i]
        (made / f"{i}").mkdir()
        write(kind, made / f"{i}", [{"id": f"{number + j}", "text": "x" * j} for j in range(size)])
        number += size
    return made


def rows_of(
    folder: Path, rank: int, world: int, first: int, num_steps: int
) -> list[tuple[range, list[StreamRow]]]:
    """Return a rank's rows of some steps, with their places in these."""
    files = [StreamFile.of(source) for source in find_sources(folder)]
    order = StreamOrder(scan_all(files, 200, 0), [Shuffle(0, SEED, 4)])
    with closing(PieceReader(files, print)) as reader:
        course = Course(num_rows=order.num_rows, batch_size=BATCH)
        made = StreamRows(order, reader, course, rank=rank, world_size=world)
        return list(islice(made.steps(first), num_steps))


def id_of(row: StreamRow) -> int:
    found: Any = json.loads(row.raw) if isinstance(row.raw, bytes) else row.raw
    return int(found["id"])


def steps_of(folder: Path, world: int, first: int, num_steps: int) -> list[list[int]]:
    """Return the ids of each step's rows in order; ranks have as many as each other."""
    ranks = [rows_of(folder, rank, world, first, num_steps) for rank in range(world)]
    sizes = [sum(len(rows) for _, rows in steps) for steps in ranks]
    assert max(sizes) - min(sizes) <= 1
    found = []
    for shares in zip(*ranks, strict=True):
        by_place = {
            place: id_of(row)
            for places, rows in shares
            for place, row in zip(places, rows, strict=True)
        }
        found.append([by_place[place] for place in range(len(by_place))])
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4, 16])
def test_rows_of_files_of_any_kind_are_the_same_steps_for_any_number_of_ranks(
    folder: Path, world: int
) -> None:
    alone, together = steps_of(folder, 1, 0, 36), steps_of(folder, world, 0, 36)
    assert together == alone
    assert {len(step) for step in together} == {BATCH}
    one_after_the_other = [one for step in together for one in step]
    for epoch in range(2):
        assert sorted(one_after_the_other[epoch * 179 : (epoch + 1) * 179]) == list(range(179))


@pytest.mark.parametrize("first", [1, 9, 17, 18, 30])
def test_whoever_begins_at_a_step_has_what_others_have_there(folder: Path, first: int) -> None:
    assert steps_of(folder, 3, first, 4) == steps_of(folder, 2, 0, first + 4)[first:]


def test_a_compressed_file_is_unpacked_once_an_epoch_however_many_windows_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    decompressed = Source.decompressed

    def unpack(source: Source, raw: Any) -> Any:
        opened.append(source.path)
        return decompressed(source, raw)

    monkeypatch.setattr(Source, "decompressed", unpack)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write("jsonl.gz", tmp_path / name, [{"id": i, "text": "x" * 50} for i in range(200)])
    rows_of(tmp_path, 0, 2, 0, 40)  # windows of four pieces of three rows
    paths = [tmp_path / name / "rows.jsonl.gz" for name in ("a", "b")]
    assert sorted(opened) == [paths[0]] * 2 + [paths[1]] * 2  # counted, then read


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with path.open("w") as file:
        for i in range(20_000):
            file.write(json.dumps({"id": i, "text": "x" * 2000}) + "\n")
    files = [StreamFile.of(source) for source in find_sources(path)]
    tracemalloc.start()
    order = StreamOrder(scan_all(files, 1 << 18, 0), [Shuffle(0, SEED, 8)])  # windows of 2 MiB
    with closing(PieceReader(files, print)) as reader:
        course = Course(num_rows=order.num_rows, batch_size=BATCH)
        made = StreamRows(order, reader, course, rank=0, world_size=1)
        num_rows = sum(len(rows) for _, rows in islice(made.steps(0), 2000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_rows == 20_000
    assert peak_bytes < path.stat().st_size / 5
