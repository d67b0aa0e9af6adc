"""Data preparation compared with `datasets.map`, and the cost of reading a large corpus.

`python -m benchmarks.data [--quick] [--megabytes N] [--lines N] [--turns N] [--json]` tokenises
real lines (the sources of Python's standard library) with a BPE tokenizer trained on them, in turns
of a few seconds (benchmarks/turns.py): with Airlock's own code, with the tokenizer's batch call,
and with `datasets.map`, as used in the program that preceded Airlock and with the best settings
found. Then it measures ranks that tokenise while they read, next to those of `datasets`, and 8
processes that read a generated file of 14.7 million lines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.corpora.data_cases import MODEL, TEXT
from benchmarks.corpora.stream_cases import PEER, STREAM
from benchmarks.corpora.tokenise_cases import MAPS, ORIGINAL, WHOLE
from benchmarks.report import machine
from benchmarks.streaming import stream
from benchmarks.tokenising import tokenise
from benchmarks.tree import PeakMemory, Tree
from rundir.prepared import PreparedData

ROOT = Path(__file__).resolve().parent.parent
_MB = 1e6
_NUM_RANKS = 8
_VOCAB = 32_000
_BATCH_ROWS = 220_000  # of short lines: the 16 MiB that train/data/arrow_file.py puts together
_TIMEOUT_S = 3600.0
_PRE_TOKENS = (  # of Qwen2's tokenizer
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_corpus(folder: Path, megabytes: float) -> float:
    """Write text.jsonl, of short lines and a few long ones, and a model folder; return its MB."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = (source.read_text(encoding="utf-8", errors="ignore") for source in sources)
    lines = [line.strip() for text in texts for line in text.splitlines() if len(line) > 20]
    split = pre_tokenizers.Split(Regex(_PRE_TOKENS), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=_VOCAB,
            initial_alphabet=alphabet,
            special_tokens=["<|end|>"],
            show_progress=False,
        ),
    )
    model = folder / MODEL
    model.mkdir()
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "config.json").write_text(json.dumps({"vocab_size": _VOCAB}), encoding="utf-8")
    (model / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}', encoding="utf-8")
    draw, size = random.Random(0), 0  # noqa: S311 - not a secret
    with (folder / TEXT).open("w", encoding="utf-8") as file:
        while size < megabytes * _MB:
            text = " ".join(draw.choices(lines, k=draw.choice((1, 1, 2, 2, 3, 8))))
            size += len(text.encode())
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return size / _MB


def make_lines(folder: Path, num_lines: int) -> PreparedData:
    """Write a file like a prepared one, with `num_lines` lines of 4 to 20 tokens."""
    import pyarrow as pa

    from train.data.samples import SCHEMA

    draw, path = np.random.default_rng(0), folder / "lines.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for start in range(0, num_lines, _BATCH_ROWS):
            num = min(_BATCH_ROWS, num_lines - start)
            lengths = draw.integers(4, 21, num)
            ends = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
            ids = draw.integers(0, _VOCAB, int(ends[-1]), dtype=np.int32)
            ranges = np.stack([np.zeros(num), lengths], axis=1).astype(np.int32).ravel()
            nothing = pa.nulls(num, pa.string())
            writer.write_batch(
                pa.record_batch(
                    [
                        pa.ListArray.from_arrays(pa.array(ends), pa.array(ids)),
                        pa.ListArray.from_arrays(
                            pa.array(np.arange(num + 1, dtype=np.int32) * 2), pa.array(ranges)
                        ),
                        nothing,
                        nothing,
                        pa.nulls(num, pa.int64()),
                        pa.nulls(num, pa.int32()),
                    ],
                    schema=SCHEMA,
                )
            )
    prepared = PreparedData(
        path=str(path), num_samples=num_lines, num_too_long=0, longest=20, end_token_id=0
    )
    (folder / "lines.json").write_text(json.dumps(asdict(prepared)), encoding="utf-8")
    return prepared


def _env(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "AIRLOCK_CACHE_DIR": str(folder / "cache"),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _command(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "benchmarks.corpora.data_cases", name, str(folder)]


def peak_bytes(folder: Path) -> int:
    """Return the peak memory of all processes of a whole preparation, as proportional set size."""
    with Tree(_command("whole", folder), _env(folder), folder) as tree:
        memory = PeakMemory(tree, 0.2)
        tree.wait(_TIMEOUT_S)
        return memory.stop().pss_bytes


def read(folder: Path, num_lines: int) -> dict[str, Any]:
    """Let eight ranks map one file; return the time to the first batch, speed and memory."""
    size_bytes = Path(make_lines(folder, num_lines).path).stat().st_size
    pipe = subprocess.PIPE
    ranks = [
        subprocess.Popen(
            _command("rank", folder), env=_env(folder), stdin=pipe, stdout=pipe, text=True, cwd=ROOT
        )
        for _ in range(_NUM_RANKS)
    ]
    for _ in range(3):
        for one in ranks:
            assert one.stdout is not None
            one.stdout.readline()
        for one in ranks:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
    found = [json.loads(one.communicate(timeout=_TIMEOUT_S)[0]) for one in ranks]
    alone = subprocess.run(
        _command("rank", folder),
        env=_env(folder),
        input="\n\n\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return {
        "num_lines": num_lines,
        "file_bytes": size_bytes,
        "file_in_memory_bytes": sum(one["file_share_bytes"] for one in found),
        "private_bytes": max(one["private_bytes"] for one in found),
        "pickled_bytes": max(one["pickled_bytes"] for one in found),
        "first_batch_s": max(one["first_batch_s"] for one in found),
        "first_batch_alone_s": json.loads(alone.stdout.splitlines()[-1])["first_batch_s"],
        "samples_per_s": min(one["samples_per_s"] for one in found),
    }


def claims(
    speeds: dict[str, dict[str, Any]],
    peak: int,
    reading: dict[str, Any],
    streaming: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Return each claim with the measured value; a peer that is not installed gets none."""
    found: dict[str, tuple[float, bool]] = {}
    if ORIGINAL in speeds:
        ratio = speeds[ORIGINAL]["ours_is"]["mean"]
        best = min(speeds[name]["ours_is"]["mean"] for name in MAPS)
        found["tokenising ÷ map with batch 10, at least 2.5"] = ratio, ratio >= 2.5
        found["tokenising ÷ the best map, at least 1.1"] = best, best >= 1.1
    ours = streaming[STREAM]
    if PEER in streaming:
        ratio = ours["samples_per_s"] / streaming[PEER]["samples_per_s"]
        found["streaming ÷ that of datasets, at least 1"] = ratio, ratio >= 1
    found["streaming, s to go on at 90 %, below 2"] = ours["resumed_s"], ours["resumed_s"] < 2
    in_memory = reading["file_in_memory_bytes"] / reading["file_bytes"]
    found["preparing, GB at most 1.5"] = peak / 1e9, peak <= 1.5e9
    found["file in memory of 8 ranks ÷ file, at most 1.1"] = in_memory, in_memory <= 1.1
    private, pickled = reading["private_bytes"] / _MB, reading["pickled_bytes"]
    found["private MB of a rank for data, at most 60"] = private, private <= 60
    found["first batch, s below 1"] = reading["first_batch_s"], reading["first_batch_s"] < 1
    found["pickled bytes, below 2000"] = pickled, pickled < 2000
    return {
        name: {"value": round(value, 4), "holds": holds} for name, (value, holds) in found.items()
    }


def print_tables(found: dict[str, Any]) -> None:
    """Print the results for people."""
    table = Table("what", "MB/s", "ours is", "95 %")
    for name, one in found["cases"]["tokenising"].items():
        ratio = one["ours_is"]
        interval = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        table.add_row(name, f"{one['mb_per_s']:.2f}", f"{ratio['mean']:.2f} times", interval)
    Console().print(table)
    table = Table("what", "samples/s", "first, s", "going on at 90 %, s")
    for name, one in found["cases"]["streaming"].items():
        rest = (f"{one[key]:.2f}" if key in one else "" for key in ("first_s", "resumed_s"))
        table.add_row(name, f"{one['samples_per_s']:,.0f}", *rest)
    Console().print(table)
    table = Table("claim", "found", "holds")
    for name, one in found["ratios"].items():
        table.add_row(name, f"{one['value']:,.3f}", str(one["holds"]))
    Console().print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main() -> None:
    """Compare, print the tables, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data")
    parser.add_argument("--quick", action="store_true", help="little of everything, in 3 minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--megabytes", type=float, default=24.0, help="of text to tokenise")
    parser.add_argument("--lines", type=int, default=14_700_000, help="of the file that is read")
    parser.add_argument("--turns", type=int, default=20, help="of 3 s for whatever tokenises")
    parser.add_argument("--repeat", type=int, default=5, help="times that ranks stream")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.lines = 4.0, 1_000_000
        options.turns, options.repeat = 3, 1
    with tempfile.TemporaryDirectory(prefix="data-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        megabytes = make_corpus(folder, options.megabytes)
        speeds = tokenise(folder, options.turns, _env(folder), _say)
        streaming = stream(folder, options.repeat, _env(folder), _say)
        whole_s = megabytes / speeds[WHOLE]["mb_per_s"]
        streaming[WHOLE] = {"samples_per_s": streaming[STREAM]["num_rows"] / whole_s}
        peak = peak_bytes(folder)
        _say(f"peak memory of preparing: {peak / _MB:.0f} MB")
        reading = read(folder, options.lines)
    values = claims(speeds, peak, reading, streaming)
    has_peer = ORIGINAL in speeds
    holds: bool | str = all(one["holds"] for one in values.values())
    is_whole = has_peer and not options.quick and options.lines == parser.get_default("lines")
    found = {
        "machine": machine(),
        "megabytes": round(megabytes, 1),
        "cases": {
            "tokenising": speeds,
            "streaming": streaming,
            "preparing": {"peak_pss_bytes": peak},
            "reading": reading,
        },
        "ratios": values,
        "holds": holds and (is_whole or "incomplete"),
        "skipped": {} if has_peer else dict.fromkeys([*MAPS, PEER], "`datasets` is not installed"),
    }
    print_tables(found)
    if options.json:
        print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
