"""One start of a case: its own folder and process tree, followed until all ranks are ready."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.starts.cases import Case
from benchmarks.starts.launchers import LAUNCHERS, Ready
from benchmarks.tree import Tree

_POLL_S = 0.02

Wrap = Callable[[Sequence[str]], list[str]]  # a command → that command, under a limit


class NotReadyError(Exception):
    """A start that did not come up; the text says how it ended."""


class Start:
    """A case that has been started. No process of it is left after the block."""

    def __init__(self, case: Case, folder: Path, tree: Tree) -> None:
        self.case, self.tree = case, tree
        self._folder = folder

    def wait(self, attempts: Iterable[int], timeout_s: float) -> tuple[int, Ready]:
        """Return the first attempt whose ranks are all ready; those before it have failed.

        Raises NotReadyError when none comes up.
        """
        launcher = LAUNCHERS[self.case.launcher]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for attempt in attempts:
                if ready := launcher.seen(self._folder, self.case.num_ranks, attempt):
                    return attempt, ready
            if self.tree.has_ended():
                text = self.tree.log.read_text()[-3000:]
                raise NotReadyError(f"the launcher has ended:\n{text}")
            time.sleep(_POLL_S)
        raise NotReadyError(f"the ranks were not ready after {timeout_s:.0f} s")


@contextlib.contextmanager
def started(
    case: Case,
    model: Path | None,
    *,
    restarts: int = 0,
    gate: Path | None = None,
    wrap: Wrap = list,
) -> Iterator[Start]:
    """Start a case with the checkpoint `model`; `gate` is shared with other starts, if given."""
    launcher = LAUNCHERS[case.launcher]
    with tempfile.TemporaryDirectory(prefix="startup-") as name:
        folder = Path(name)
        command = launcher.command(folder, case.num_ranks, model, restarts)
        environment = launcher.environment(folder, gate or folder / "gate")
        with Tree(wrap(command), environment, folder) as tree:
            yield Start(case, folder, tree)
