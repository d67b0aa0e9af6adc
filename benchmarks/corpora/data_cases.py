"""The programs that benchmarks/data.py measures, each in its own process.

`python -m benchmarks.corpora.data_cases rank FOLDER` reads prepared data as one of several
ranks and prints one JSON object; `whole` prepares the corpus.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import time
from pathlib import Path

from rundir.paths import cache_folder
from rundir.prepared import PreparedData

TEXT, MODEL = "text.jsonl", "model"  # in the folder of the corpus
ROW_TOKENS = 2048
_NUM_READ = 20_000


def texts_of(folder: Path) -> list[str]:
    """Return the corpus, in memory."""
    with (folder / TEXT).open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def whole(folder: Path) -> None:
    """Prepare from the file to the sealed cache: digest, reading, checks, tokens, Arrow, fsync."""
    from train.data.path_samples import prepare_path
    from train.data.samples import Recipe

    shutil.rmtree(cache_folder(), ignore_errors=True)
    prepare_path(folder / TEXT, folder / MODEL, Recipe(max_seq_length=ROW_TOKENS))


def private_bytes(file: str = "") -> tuple[int, int]:
    """Return (private memory of this process, its proportional share of one mapped file)."""
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
    """Measure the data access of one of several ranks, which wait for each other at each stage."""
    from train.batches.course import Course
    from train.batches.epoch_order import Order
    from train.data.dataset import SampleFile

    prepared = PreparedData(**json.loads((folder / "lines.json").read_text(encoding="utf-8")))
    print("imported", flush=True)  # noqa: T201
    sys.stdin.readline()
    before, _ = private_bytes()
    started = time.perf_counter()
    samples = SampleFile(prepared)
    order = Order(Course(num_rows=len(samples), batch_size=64))
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
    sys.stdin.readline()  # now all ranks have touched every page
    after, share = private_bytes(prepared.path)
    print("measured", flush=True)  # noqa: T201
    sys.stdin.readline()
    return {
        "first_batch_s": first_batch_s,
        "samples_per_s": per_s,
        "private_bytes": after - before,
        "file_share_bytes": share,
        "pickled_bytes": len(pickle.dumps(samples)),
    }


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        print(json.dumps(rank(Path(sys.argv[2]))), flush=True)  # noqa: T201
    else:
        whole(Path(sys.argv[2]))
