"""The programs that benchmarks/tokenising.py runs in turns: each tokenises a corpus for ever.

`python -m benchmarks.corpora.tokenise_cases NAME FOLDER STEPS` adds a line to the file STEPS for
each piece of the corpus: its megabytes of text. `datasets` gets what it asks for: a dataset on
disk, a fast tokenizer of transformers, caching off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.corpora.data_cases import MODEL, ROW_TOKENS, TEXT, texts_of, whole
from benchmarks.corpora.steps_file import StepsFile

_MB = 1e6
_ROWS = 4096
ORIGINAL = "map, batch 10"
MAPS: dict[str, dict[str, Any]] = {
    ORIGINAL: {"batch_size": 10, "num_proc": None},
    "map, batch 1000": {"batch_size": 1000, "num_proc": None},
    "map, batch 10000": {"batch_size": 10_000, "num_proc": None},
    "map, a process a core": {"batch_size": 1000, "num_proc": len(os.sched_getaffinity(0))},
}
OURS, ONE_CORE, WHOLE = "airlock", "airlock, on one core", "airlock, whole preparation"
BARE = "encode_batch_fast"


def _size(texts: list[str]) -> float:
    return sum(map(len, texts)) / _MB


def ours(folder: Path, steps: StepsFile) -> None:
    """Tokenise only: the rows are in memory."""
    from train.data.columns import Columns
    from train.data.formats.format import Block
    from train.data.path_samples import load_text_tools
    from train.data.pool import in_order, num_processes
    from train.data.samples import Recipe
    from train.data.tokenise import Tokeniser

    texts = texts_of(folder)
    pieces = [texts[at : at + _ROWS] for at in range(0, len(texts), _ROWS)]
    blocks = [Block(folder, list(range(len(some))), some) for some in pieces]
    recipe, columns = Recipe(max_seq_length=ROW_TOKENS), Columns("text", ("text",))
    tokeniser = Tokeniser(*load_text_tools(folder / MODEL), recipe, columns)
    all_made = in_order(tokeniser, cycle(blocks), num_processes())
    for made, some in zip(all_made, cycle(pieces), strict=True):
        assert made.train.num_rows == len(some)
        steps.add(_size(some))


def on_one_core(folder: Path, steps: StepsFile) -> None:
    """Tokenise as `ours` does, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    ours(folder, steps)


def bare(folder: Path, steps: StepsFile) -> None:
    """Call only the tokenizer's own batch function."""
    from train.data.path_samples import load_text_tools

    texts, (tokenizer, _) = texts_of(folder), load_text_tools(folder / MODEL)
    pieces = [texts[at : at + 1024] for at in range(0, len(texts), 1024)]
    for some in cycle(pieces):
        tokenizer.encode_batch_fast(some, add_special_tokens=False)
        steps.add(_size(some))


def prepared(folder: Path, steps: StepsFile) -> None:
    """Prepare everything each time, from the file to the sealed cache."""
    size = _size(texts_of(folder))
    while True:
        whole(folder)
        steps.add(size)


def mapped(settings: dict[str, Any]) -> Callable[[Path, StepsFile], None]:
    """Return a program that calls `datasets.map` with these settings."""

    def run(folder: Path, steps: StepsFile) -> None:
        import datasets
        from transformers import PreTrainedTokenizerFast

        datasets.disable_caching()
        datasets.disable_progress_bars()
        rows = datasets.load_dataset(
            "json",
            data_files=str(folder / TEXT),
            split="train",
            cache_dir=str(steps.path.with_name("datasets")),
        )
        make: Any = PreTrainedTokenizerFast
        tokenizer = make(tokenizer_file=str(folder / MODEL / "tokenizer.json"))

        def tokenise(some: dict[str, list[str]]) -> dict[str, Any]:
            ids = tokenizer(some["text"])["input_ids"]
            steps.add(_size(some["text"]))
            return {"input_ids": ids}

        while True:
            made = rows.map(tokenise, batched=True, remove_columns=["text"], **settings)
            assert len(made) == len(rows)

    return run


CASES: dict[str, Callable[[Path, StepsFile], None]] = {
    OURS: ours,
    ONE_CORE: on_one_core,
    WHOLE: prepared,
    BARE: bare,
    **{name: mapped(one) for name, one in MAPS.items()},
}


if __name__ == "__main__":
    CASES[sys.argv[1]](Path(sys.argv[2]), StepsFile(Path(sys.argv[3])))
