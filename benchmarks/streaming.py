"""Ranks that tokenise while they read, some at once: the streaming part of benchmarks/data.py."""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.corpora.stream_cases import PEER, STREAM, count_rows

ROOT = Path(__file__).resolve().parent.parent
_NUM_RANKS = 2
_TIMEOUT_S = 3600.0


def stream(
    folder: Path, repeat: int, env: dict[str, str], say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Run ranks of each kind in turns, `repeat` times; return sums over ranks and their maxima."""
    started = time.perf_counter()
    num_rows = count_rows(folder)
    counted_s = time.perf_counter() - started
    (folder / "rows.json").write_text(json.dumps(num_rows), encoding="ascii")
    names = [STREAM, *([PEER] if importlib.util.find_spec("datasets") else [])]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(repeat):
        for name in names[::-1] if turn % 2 else names:
            ranks = _ranks(name, folder, env)
            found[name].append(
                {
                    "samples_per_s": sum(one["samples_per_s"] for one in ranks),
                    "rows_of_all_ranks": sum(one["num_rows"] for one in ranks),
                    "first_s": max(one["first_s"] for one in ranks),
                    "resumed_s": max(one["resumed_s"] for one in ranks),
                }
            )
            say(f"{name}: {found[name][-1]['samples_per_s']:,.0f} samples/s")
    return {
        name: {key: statistics.median(one[key] for one in some) for key in some[0]}
        | {"num_rows": num_rows, "counted_s": counted_s if name == STREAM else None}
        for name, some in found.items()
    }


def _ranks(name: str, folder: Path, env: dict[str, str]) -> list[dict[str, float]]:
    """Return the results of each of some concurrent ranks."""
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "benchmarks.corpora.stream_cases",
                name,
                str(folder),
                str(rank),
                str(_NUM_RANKS),
            ],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        for rank in range(_NUM_RANKS)
    ]
    for one in ranks:  # all begin before any is waited for
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return [json.loads(one.communicate(timeout=_TIMEOUT_S)[0]) for one in ranks]
