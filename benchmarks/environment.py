"""The time to create `.venv`: `./airlock` with uv, against venv and pip with the same pins.

`python -m benchmarks.environment [--quick] [--json]` creates each in a new clone, in turns, with
uv's and pip's caches empty at first; then Airlock's once more with uv's cache, as in a second
clone. Time runs from the exec of the command until a Python process has imported torch and
transformers; that process is started at the end of each, and compiles any missing bytecode.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.report import Ratio, machine
from rundir.paths import ROOT

_IMPORTS = "import torch, transformers, peft, pyarrow"
_PIP = "venv and pip"
_AT_MOST_S = 30.0


def clone(folder: Path) -> Path:
    """Clone what is committed into a path with a space."""
    target = folder / "a clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(target)], check=True)
    return target


def ours(folder: Path, cache: Path) -> float:
    """Return the seconds that `./airlock` takes to its first answer, plus the imports."""
    root = clone(folder)
    env = os.environ | {"AIRLOCK_ENV": "own", "UV_CACHE_DIR": str(cache)}
    return _seconds(
        [[str(root / "airlock"), "ps"], [str(root / ".venv/bin/python"), "-c", _IMPORTS]], env
    )


def pips(folder: Path) -> float:
    """Return the seconds that venv and pip take, plus the imports."""
    root, python = clone(folder), str(folder / "venv/bin/python")
    pip = [python, "-m", "pip", "install", "--no-cache-dir", "--quiet", "-r"]
    return _seconds(
        [
            [sys.executable, "-m", "venv", str(folder / "venv")],
            [*pip, str(root / "requirements.txt")],
            [python, "-c", _IMPORTS],
        ],
        dict(os.environ),
    )


def _seconds(commands: list[list[str]], env: dict[str, str]) -> float:
    started_s = time.monotonic()
    for command in commands:
        subprocess.run(command, env=env, check=True, stdout=sys.stderr)
    return time.monotonic() - started_s


def measure(num_turns: int) -> dict[str, list[float]]:
    """Return the seconds of each method, turn by turn."""
    found: dict[str, list[float]] = {"airlock": [], _PIP: [], "airlock, a second clone": []}
    for _ in range(num_turns):
        with tempfile.TemporaryDirectory(prefix="airlock-benchmark-") as name:
            folder = Path(name)
            for one in ("first", "second", "pip"):
                (folder / one).mkdir()
            found["airlock"].append(ours(folder / "first", folder / "cache"))
            found[_PIP].append(pips(folder / "pip"))
            found["airlock, a second clone"].append(ours(folder / "second", folder / "cache"))
    return found


def main() -> None:
    """Compare, print the table, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environment")
    parser.add_argument("--quick", action="store_true", help="one turn, in 3 minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    found = measure(1 if options.quick else 3)
    table = Table("way", "seconds", "from", "to", title="an environment")
    for way, seconds in found.items():
        table.add_row(way, *(f"{one(seconds):.1f}" for one in (median, min, max)))
    Console().print(table)
    shares = [one / other for one, other in zip(found["airlock"], found[_PIP], strict=True)]
    values = {
        "seconds": Ratio(found["airlock"], _AT_MOST_S).as_dict(),
        f"airlock / {_PIP}": Ratio(shares, 1.0).as_dict(),
    }
    holds = all(value["holds"] for value in values.values())
    if options.json:
        cases = {way: {"seconds": seconds} for way, seconds in found.items()}
        told = {"machine": machine(), "cases": cases, "ratios": values, "holds": holds}
        print(json.dumps({**told, "skipped": {}}))  # noqa: T201


if __name__ == "__main__":
    main()
