"""Programs of the benchmark's own, each in a process of its own, so that its GPU memory is freed.

They print a marked line of JSON for figures, as soon as they are known; libraries print others.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gpus.run import Done, FailedError, Figures, OutOfTimeError, Place, last_lines
from benchmarks.tree import Tree

_POLL_S = 0.1
_MARK = "FIGURES "


def figures_of(
    module: str,
    arguments: list[str],
    place: Place,
    timeout_s: float,
    env: Mapping[str, str | None] | None = None,
) -> Iterator[Figures]:
    """Run `python -m MODULE ARGUMENTS` and yield the figures that it prints, line by line.

    `env` adds variables; None removes one. Nothing of it is left running. Raises FailedError,
    OutOfTimeError.
    """
    name = module.rpartition(".")[2]
    work = place.folder / f"work-{name}"
    work.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", module, *arguments]
    num_read = 0
    whole = {**place.environment(name), **(env or {})}
    given = {key: value for key, value in whole.items() if value is not None}
    with Tree(command, given, work) as tree:
        has_ended = False
        while not has_ended:
            time.sleep(_POLL_S)
            has_ended = tree.has_ended()
            lines = _figures(tree.log)
            yield from lines[num_read:]
            num_read = len(lines)
            if not has_ended and time.monotonic() - tree.started > timeout_s:
                text = f"not done after {timeout_s:.0f} s:\n{last_lines(tree.log)}"
                raise OutOfTimeError(text, Done(started=tree.started, events=()))
        if tree.exit_code != 0:
            text = f"it ended with {tree.exit_code}:\n{last_lines(tree.log)}"
            raise FailedError(text, tree.exit_code)


def _figures(log: Path) -> list[Figures]:
    """Return what the complete lines tell."""
    whole = log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    return [json.loads(line.removeprefix(_MARK)) for line in whole if line.startswith(_MARK)]


def tell(**figures: object) -> None:
    """Print figures, in such a program."""
    print(_MARK + json.dumps(figures), flush=True)  # noqa: T201
