"""Ranks that tokenise a file while they read it, each in its own process.

`python -m benchmarks.corpora.stream_cases NAME FOLDER RANK WORLD` waits for a line on stdin, reads
a rank's share of an epoch, starts once more at 90 % of it, and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rundir.config import RunConfig

STREAM = "airlock, streaming"
PEER = "datasets, split_dataset_by_node"
_BATCH, _SEED = 64, 0
_TOKENS = 2048
_RESUMED = 0.9  # of an epoch

# Starts at a share of the epoch; yields the number of rows of each piece that a rank has tokenised.
Case = Callable[[Path, int, int, float], Iterator[int]]


def config_of(folder: Path) -> RunConfig:
    """Return the configuration of a run that streams the corpus."""
    config = RunConfig(profile="benchmark")
    return replace(
        config,
        data=replace(
            config.data, path=str(folder / "text.jsonl"), streaming=True, max_seq_length=_TOKENS
        ),
        train=replace(config.train, global_batch_size=_BATCH, seed=_SEED),
    )


def count_rows(folder: Path) -> int:
    """Count all rows and try some, as done before ranks start; return their number."""
    from rundir.paths import RunDir
    from train.data.path_samples import load_text_tools
    from train.data.samples import recipes
    from train.stream.count_and_try import count_and_try

    config, model = config_of(folder), folder / "model"
    recipe, tools = recipes(config)[0], load_text_tools(model)
    run = RunDir(folder / "run")
    prepared, _, _ = count_and_try(Path(config.data.path), model, recipe, tools, run)
    return prepared.num_samples


def ours(folder: Path, rank: int, world: int, begin: float) -> Iterator[int]:
    """Yield Airlock's share."""
    from train.batches.course import course_of
    from train.stream.piece_reader import PieceReader
    from train.stream.pieces import Pieces
    from train.stream.step_share import StreamRows, order_of, shares

    pieces, config = Pieces.load(folder / "run/data/stream"), config_of(folder)
    steps = pieces.num_rows // _BATCH
    first = int(steps * begin)
    course, reader = course_of(config, pieces.num_rows), PieceReader(pieces.files, print)
    rows = StreamRows(order_of(pieces, course), reader, course, rank=rank, world_size=world)
    made = shares(rows, pieces.columns, config, folder / "model", first)
    for _ in range(first, steps):
        yield next(made).counts.num_rows


def peer(folder: Path, rank: int, world: int, begin: float) -> Iterator[int]:
    """Yield the share that `datasets` gives a rank, shuffled in a buffer of 10,000 rows."""
    import datasets
    from datasets.distributed import split_dataset_by_node
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_file=str(folder / "model/tokenizer.json"))
    data: Any = datasets.load_dataset(
        "json", data_files=str(folder / "text.jsonl"), split="train", streaming=True
    ).shuffle(seed=_SEED, buffer_size=10_000)
    own = split_dataset_by_node(data, rank=rank, world_size=world)
    if begin:
        rows = json.loads((folder / "rows.json").read_text(encoding="ascii"))
        own = own.skip(int(rows * begin) // world)
    made = own.map(
        lambda some: {"input_ids": tokenizer(some["text"])["input_ids"]},
        batched=True,
        batch_size=_BATCH,
        remove_columns=["text"],
    )
    for batch in made.batch(_BATCH):
        yield len(batch["input_ids"])


CASES: dict[str, Case] = {STREAM: ours, PEER: peer}


def measure(case: Case, folder: Path, rank: int, world: int) -> dict[str, float]:
    """Measure seconds to the first rows, rows per second after these, and seconds to resume."""
    started = time.perf_counter()
    made = case(folder, rank, world, 0.0)
    num_rows = next(made)
    first_s = time.perf_counter() - started
    started, done = time.perf_counter(), 0
    for some in made:
        done += some
    took_s = time.perf_counter() - started
    started = time.perf_counter()
    next(case(folder, rank, world, _RESUMED))
    return {
        "num_rows": num_rows + done,
        "first_s": first_s,
        "samples_per_s": done / took_s,
        "resumed_s": time.perf_counter() - started,
    }


if __name__ == "__main__":
    name, at, rank, world = sys.argv[1:]
    sys.stdin.readline()
    print(json.dumps(measure(CASES[name], Path(at), int(rank), int(world))))  # noqa: T201
