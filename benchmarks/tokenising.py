"""Tokenising with Airlock and others, in turns: the tokenising part of benchmarks/data.py."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.corpora.steps_file import StepsFile
from benchmarks.corpora.tokenise_cases import BARE, MAPS, ONE_CORE, OURS, WHOLE
from benchmarks.tree import Tree
from benchmarks.turns import Compared, begin, speeds, take_turns

_WARM_STEPS = 2
_TURN_S = 3.0
_TIMEOUT_S = 600.0


class Tokenising:
    """A program that tokenises, already started; its files are in `scratch`."""

    def __init__(self, name: str, folder: Path, scratch: Path, env: Mapping[str, str]) -> None:
        self._steps = StepsFile(scratch / "steps")
        command = ["benchmarks.corpora.tokenise_cases", name, str(folder), str(self._steps.path)]
        own = {"AIRLOCK_CACHE_DIR": str(scratch / "cache")}
        self.tree = Tree([sys.executable, "-P", "-m", *command], {**env, **own}, scratch)

    def ends(self) -> list[float]:
        """Return the end time of each step so far, in seconds on the monotonic clock."""
        return self._steps.read()[0]

    def megabytes(self) -> list[float]:
        """Return the megabytes of text of each step so far."""
        return self._steps.read()[1]

    def said(self) -> str:
        """Return the end of the printed output."""
        return self.tree.log.read_text(encoding="utf-8", errors="replace")[-3000:]


def tokenise(
    folder: Path, num_turns: int, env: Mapping[str, str], say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Run all cases in turns; return MB of text per second and our speed relative to each.

    Raises RuntimeError when one fails, with its output.
    """
    names = [OURS, ONE_CORE, WHOLE, BARE, *(MAPS if importlib.util.find_spec("datasets") else ())]
    with ExitStack() as stack:
        programs, clocks = {}, {}
        for name in names:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tokenising-"))
            program = Tokenising(name, folder, Path(scratch), env)
            stack.enter_context(program.tree)
            try:
                clocks[name] = begin(program, _WARM_STEPS, _TIMEOUT_S)
            except RuntimeError as error:
                raise RuntimeError(f"{name}: {error}\n{program.said()}") from error
            programs[name] = program
        take_turns(programs, clocks, num_turns=num_turns, turn_s=_TURN_S, timeout_s=_TIMEOUT_S)
        rates = {
            name: speeds(clocks[name], one.ends(), one.megabytes())
            for name, one in programs.items()
        }
    found = {}
    for name, some in rates.items():
        ratio = Compared.of(rates[OURS], some)
        found[name] = {"mb_per_s": statistics.median(some), "ours_is": asdict(ratio)}
        say(f"{name}: {found[name]['mb_per_s']:.2f} MB/s, ours is {ratio.mean:.2f} times that")
    return found
