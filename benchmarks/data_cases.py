"""The programs that benchmarks/data.py measures, each in a process of its own.

`python -m benchmarks.data_cases NAME FOLDER` prints one JSON object. `datasets` is given what it
asks for: a dataset on disk, a fast tokenizer of transformers, caching off.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rundir.prepared import PreparedData

_ROW_TOKENS = 2048
_NUM_READ = 20_000
ORIGINAL = "map, batch 10"
MAPS: dict[str, dict[str, Any]] = {
    ORIGINAL: {"batch_size": 10, "num_proc": None},
    "map, batch 1000": {"batch_size": 1000, "num_proc": None},
    "map, batch 10000": {"batch_size": 10_000, "num_proc": None},
    "map, a process a core": {"batch_size": 1000, "num_proc": len(os.sched_getaffinity(0))},
}
OURS, BARE, WHOLE = "airlock", "encode_batch_fast", "airlock, whole preparation"


def texts_of(folder: Path) -> list[str]:
    """The corpus, in memory."""
    with (folder / "text.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def ours(folder: Path) -> float:
    """Seconds of tokenising alone: the rows are in memory, the processes are started meanwhile."""
    from train.columns import Columns
    from train.pool import in_order, num_processes
    from train.prepare import load_text_tools
    from train.readers import Block
    from train.tokenise import Recipe, Tokeniser

    texts, size = texts_of(folder), 4096
    blocks = [
        Block(folder, list(range(at, at + len(texts[at : at + size]))), texts[at : at + size])
        for at in range(0, len(texts), size)
    ]
    recipe, columns = Recipe(max_seq_length=_ROW_TOKENS), Columns("text", ("text",))
    tokeniser = Tokeniser(*load_text_tools(folder / "model"), recipe, columns)
    started = time.perf_counter()
    num = sum(made.train.num_rows for made in in_order(tokeniser, blocks, num_processes()))
    took_s = time.perf_counter() - started
    assert num == len(texts)
    return took_s


def bare(folder: Path) -> float:
    """Seconds of the tokenizer's own batch call, and nothing around it."""
    from train.prepare import load_text_tools

    texts, (tokenizer, _) = texts_of(folder), load_text_tools(folder / "model")
    started = time.perf_counter()
    for at in range(0, len(texts), 1024):
        tokenizer.encode_batch_fast(texts[at : at + 1024], add_special_tokens=False)
    return time.perf_counter() - started


def whole(folder: Path) -> float:
    """Seconds from the file to the sealed cache: digest, reading, checks, tokens, Arrow, fsync."""
    from train.prepare import prepare_path
    from train.tokenise import Recipe

    started = time.perf_counter()
    prepare_path(folder / "text.jsonl", folder / "model", Recipe(max_seq_length=_ROW_TOKENS))
    return time.perf_counter() - started


def mapped(settings: dict[str, Any]) -> Callable[[Path], float]:
    """Seconds of `datasets.map` with these settings."""

    def run(folder: Path) -> float:
        import datasets
        from transformers import PreTrainedTokenizerFast

        datasets.disable_caching()
        datasets.disable_progress_bars()
        cache = str(folder / "datasets")
        rows = datasets.load_dataset(
            "json", data_files=str(folder / "text.jsonl"), split="train", cache_dir=cache
        )
        make: Any = PreTrainedTokenizerFast
        tokenizer = make(tokenizer_file=str(folder / "model/tokenizer.json"))
        started = time.perf_counter()
        made = rows.map(
            lambda some: {"input_ids": tokenizer(some["text"])["input_ids"]},
            batched=True, remove_columns=["text"], **settings,
        )  # fmt: skip
        took_s = time.perf_counter() - started
        assert len(made) == len(rows)
        return took_s

    return run


CASES: dict[str, Callable[[Path], float]] = {
    OURS: ours, BARE: bare, WHOLE: whole, **{name: mapped(one) for name, one in MAPS.items()},
}  # fmt: skip


def private_bytes(file: str = "") -> tuple[int, int]:
    """(private memory of this process, its proportional share of one mapped file)."""
    private = share = 0
    name = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        key, _, rest = line.partition(":")
        if " " in key:
            name = line.split()[-1]
        elif key in ("Private_Clean", "Private_Dirty") and name != file:
            private += int(rest.split()[0]) * 1024
        elif key == "Pss" and name == file:
            share += int(rest.split()[0]) * 1024
    return private, share


def rank(folder: Path) -> dict[str, float]:
    """What one of several ranks takes to have its data; it waits for the others at each stage."""
    from train.data import SampleFile
    from train.feed import Order

    prepared = PreparedData(**json.loads((folder / "lines.json").read_text(encoding="utf-8")))
    print("imported", flush=True)  # noqa: T201
    sys.stdin.readline()
    before, _ = private_bytes()
    started = time.perf_counter()
    samples = SampleFile(prepared)
    order = Order(len(samples), 64, 0)
    sum(int(samples[i][0].sum()) for i in order.step_indices(0))
    first_batch_s = time.perf_counter() - started
    started = time.perf_counter()
    steps = _NUM_READ // 64
    for step in range(1, steps + 1):
        for i in order.step_indices(step):
            samples[i][0].sum()
    per_s = steps * 64 / (time.perf_counter() - started)
    samples.touch()
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()  # now all have every page
    after, share = private_bytes(prepared.path)
    print("measured", flush=True)  # noqa: T201
    sys.stdin.readline()
    return {
        "first_batch_s": first_batch_s, "samples_per_s": per_s, "private_bytes": after - before,
        "file_share_bytes": share, "pickled_bytes": len(pickle.dumps(samples)),
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        print(json.dumps(rank(Path(sys.argv[2]))), flush=True)  # noqa: T201
    else:
        print(json.dumps({"s": CASES[sys.argv[1]](Path(sys.argv[2]))}), flush=True)  # noqa: T201
