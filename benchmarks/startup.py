"""How long until all ranks have passed their first barrier, and what memory that takes.

`python -P -m benchmarks.startup [--quick] [--json] [--picture FILE]` starts plain torchrun, that
with a strict lock around imports and loading, `accelerate launch` and Airlock (cold and warm) in
turn, so that what disturbs the machine disturbs all of them. Time runs from the exec of the command
to the last rank's first barrier; memory is the sum over every process below it, measured in starts
of their own, since measuring takes time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.checkpoint import large_checkpoint
from benchmarks.launchers import LAUNCHERS, Launcher, Ready, Span, missing
from benchmarks.report import machine, print_tables, ratios
from benchmarks.timeline import draw
from benchmarks.tree import PeakMemory, Tree, kill

_TIMEOUT_S = 900.0
_POLL_S = 0.02
_MEMORY_EVERY_S = 0.5


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Case:
    """What is started: a launcher's name, how many ranks, and whether with the large model."""

    launcher: str
    num_ranks: int
    with_model: bool

    @property
    def name(self) -> str:
        """As it stands in the results."""
        return f"{self.launcher}, {self.num_ranks} ranks{', model' if self.with_model else ''}"


@dataclasses.dataclass(slots=True)
class Figures:
    """What was measured of one case. Lists have one entry for each repetition."""

    ready_s: list[float] = dataclasses.field(default_factory=list)
    peak_pss_bytes: list[int] = dataclasses.field(default_factory=list)
    peak_anon_bytes: list[int] = dataclasses.field(default_factory=list)
    restart_s: list[float] = dataclasses.field(default_factory=list)
    num_restarts: int = 0
    num_failed: int = 0  # starts that did not come up


class Benchmark:
    """One run of all cases on this machine."""

    def __init__(self, model: Path | None) -> None:
        self._model = model
        self.results: dict[Case, Figures] = {}
        self._timelines: dict[Case, tuple[float, Ready]] = {}

    def run(self, plan: Plan) -> None:
        """Measure all of a plan."""
        self.time(Case("airlock warm", 1, False))  # warms the caches, ours and the kernel's
        self.results.clear()
        for measure, cases in ((self.time, plan.timed), (self.memory, plan.memory)):
            for case in cases:
                try:
                    measure(case)
                except RuntimeError as error:  # a result as well, and no reason to lose the others
                    self._figures(case).num_failed += 1
                    _say(f"{case.name}: {error}")
        for case, num in plan.restarts:
            self.restarts(case, num)

    def timelines(self, num_ranks: int) -> dict[str, tuple[float, tuple[Span, ...]]]:
        """Begin and spans of each launcher's last timed start of so many ranks, without model."""
        return {
            case.launcher: (begin, ready.spans)
            for case, (begin, ready) in sorted(self._timelines.items())
            if case.num_ranks == num_ranks and not case.with_model
        }

    def time(self, case: Case) -> None:
        """Start once and measure the time."""
        with _folder() as folder, self._tree(case, folder) as tree:
            _, ready = _wait(case, folder, tree, [0])
        self._figures(case).ready_s.append(ready.at - tree.started)
        self._timelines[case] = (tree.started, ready)
        _say(f"{case.name}: ready after {ready.at - tree.started:.2f} s")

    def memory(self, case: Case) -> None:
        """Start once and measure the peak of memory, up to and with all ranks ready."""
        with _folder() as folder, self._tree(case, folder) as tree:
            sampler = PeakMemory(tree, _MEMORY_EVERY_S)
            try:
                _wait(case, folder, tree, [0])
            finally:
                peak = sampler.stop()
        figures = self._figures(case)
        figures.peak_pss_bytes.append(peak.pss_bytes)
        figures.peak_anon_bytes.append(peak.anon_bytes)
        _say(f"{case.name}: peak {peak.pss_bytes / 1e6:,.0f} MB, anonymous "
             f"{peak.anon_bytes / 1e6:,.0f} MB")  # fmt: skip

    def restarts(self, case: Case, num: int) -> None:
        """Kill a rank `num` times; measure from its death to the next barrier of all."""
        figures = self._figures(case)
        figures.num_restarts = num
        attempt, attempts = -1, range(num + 1)
        with _folder() as folder, self._tree(case, folder, restarts=num) as tree:
            try:
                attempt, ready = _wait(case, folder, tree, [0])
                while attempt < num:
                    time.sleep(0.5)
                    died = kill(random.choice(ready.pids))  # noqa: S311
                    attempt, ready = _wait(case, folder, tree, attempts[attempt + 1 :])
                    figures.restart_s.append(ready.at - died)
            except RuntimeError as error:
                _say(f"{case.name}: {error}")
        _say(f"{case.name}: {len(figures.restart_s)} of {num} restarts came up, "
             f"the slowest in {max(figures.restart_s, default=0):.2f} s")  # fmt: skip

    def _figures(self, case: Case) -> Figures:
        return self.results.setdefault(case, Figures())

    def _tree(self, case: Case, folder: Path, restarts: int = 0) -> Tree:
        launcher = LAUNCHERS[case.launcher]
        model = self._model if case.with_model else None
        command = launcher.command(folder, case.num_ranks, model, restarts)
        return Tree(command, launcher.environment(folder), folder)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        yield Path(folder)


def _wait(case: Case, folder: Path, tree: Tree, attempts: Iterable[int]) -> tuple[int, Ready]:
    """The first of the attempts of which all ranks are ready; those before it have failed.

    Raises RuntimeError when none comes up.
    """
    launcher: Launcher = LAUNCHERS[case.launcher]
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        for attempt in attempts:
            if ready := launcher.seen(folder, case.num_ranks, attempt):
                return attempt, ready
        if tree.has_ended():
            raise RuntimeError(f"the launcher has ended:\n{tree.log.read_text()[-3000:]}")
        time.sleep(_POLL_S)
    raise RuntimeError(f"the ranks were not ready after {_TIMEOUT_S:.0f} s")


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)  # noqa: T201


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, in this order."""

    timed: list[Case]
    memory: list[Case]
    restarts: list[tuple[Case, int]]


def quick_plan() -> Plan:
    """A few small cases, in less than three minutes on two cores."""
    four = [Case(name, 4, False) for name in ("torchrun", "airlock warm")]
    timed = [Case("torchrun", 1, False), Case("airlock warm", 8, False), *four]
    return Plan(timed, four, [(Case("airlock warm", 8, False), 3)])


def full_plan(available: list[str]) -> Plan:
    """Every launcher and size once; then, in turns, what the claims compare, four times more."""
    every = [
        Case(name, num, with_model)
        for num in (1, 2, 4, 8, 16, 32)
        for with_model in (False, True)
        for name in available
        # Loading in each rank is there for its slope alone.
        if name != "airlock imports" or (with_model and num in (8, 32))
    ]
    compared = [
        Case("torchrun", 1, False), Case("torchrun", 8, False), Case("strict lock", 8, False),
        *(Case("airlock warm", num, with_model) for num in (8, 32) for with_model in (False, True)),
        *(Case("airlock imports", num, True) for num in (8, 32)),
    ]  # fmt: skip
    memory = [
        case for case in every
        if case.num_ranks == 8 or (case.num_ranks in (1, 32) and case.launcher == "airlock warm")
    ]  # fmt: skip
    restarts = [(Case("airlock warm", 8, False), 20), (Case("torchrun", 8, False), 3)]
    return Plan(every + compared * 4, memory, restarts)


def main() -> None:
    """Measure, print the tables, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -P -m benchmarks.startup")
    parser.add_argument("--quick", action="store_true", help="a few small cases, in 3 minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="timeline of 8 ranks (.svg)")
    options = parser.parse_args()
    skipped = {name: why for name, one in LAUNCHERS.items() if (why := missing(one))}
    plan = (
        quick_plan()
        if options.quick
        else full_plan([name for name in LAUNCHERS if name not in skipped])
    )
    benchmark = Benchmark(None if options.quick else large_checkpoint())
    benchmark.run(plan)
    values, holds = ratios(benchmark.results)
    print_tables(benchmark.results, values)
    if options.picture:
        draw(benchmark.timelines(num_ranks=8), options.picture)
    if options.json:
        cases = {case.name: dataclasses.asdict(one) for case, one in benchmark.results.items()}
        found = {"machine": machine(), "cases": cases, "ratios": values, "holds": holds}
        print(json.dumps({**found, "skipped": skipped}))  # noqa: T201


if __name__ == "__main__":
    main()
