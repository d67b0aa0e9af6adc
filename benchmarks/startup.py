"""The time until all ranks have passed their first barrier, and the memory that takes.

`python -m benchmarks.startup [--quick] [--json] [--picture FILE]` starts plain torchrun, torchrun
with a strict lock around imports and loading, `accelerate launch` and Airlock (cold and warm) in
turn, so that disturbances of the machine affect all of them. Time runs from the exec of the command
to the last rank's first barrier; memory is the sum over every process below it, measured in
separate starts, since measuring takes time. `--only picture --picture docs/start.svg` makes the
README's picture.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.report import machine, print_tables, ratios
from benchmarks.starts.capped import start_capped
from benchmarks.starts.cases import Case, Figures
from benchmarks.starts.checkpoint import large_checkpoint, pickled_checkpoint
from benchmarks.starts.launchers import LAUNCHERS, ROOT, Ready, Span, missing
from benchmarks.starts.memory_cgroup import NoCgroupError
from benchmarks.starts.starting import NotReadyError, Start, started
from benchmarks.starts.timeline import draw
from benchmarks.tree import PeakMemory, kill

_TIMEOUT_S = 900.0
_MEMORY_EVERY_S = 0.5
_SCRIPTS = {
    "accelerate test_script": Path(sysconfig.get_path("purelib"))
    / "accelerate/test_utils/scripts/test_script.py",
    "ddp_tutorial": ROOT / "examples" / "ddp_tutorial.py",
}
_MAIN = ("torchrun", "strict lock", "accelerate", "airlock cold", "airlock warm")
_SMALL_CAP_MB = 1_200  # half of what eight ranks need that each import for themselves
# Eight ranks keep 0.7 GB each of the pickle and of their imports, and take 1 GB more while they
# load: there is room for three of them to load at once, and for more only at first.
_PICKLE_CAP_MB = 10_000


class Benchmark:
    """One run of all cases on this machine."""

    def __init__(self, models: dict[str, Path]) -> None:
        self._models = models
        self.results: dict[Case, Figures] = {}
        self.skipped: dict[str, str] = {}
        self._timelines: dict[Case, tuple[float, Ready]] = {}
        self._gate = tempfile.TemporaryDirectory(prefix="gate-")

    def run(self, plans: Iterable[Repeats]) -> None:
        """Measure everything in some plans."""
        self.time(Case("airlock warm", 1))  # warms the caches, ours and the kernel's
        self.results.clear()
        for plan in plans:
            self._run(plan)

    def _run(self, plan: Repeats) -> None:
        for measure, cases in (
            (self.time, plan.timed),
            (self.memory, plan.memory),
            (self.capped, plan.capped),
        ):
            for case in cases:
                try:
                    measure(case)
                except NotReadyError as error:  # a result too, and no reason to lose the others
                    self._figures(case).num_failed += 1
                    _say(f"{case.name}: {error}")
                except NoCgroupError as error:
                    self.skipped[case.name] = str(error)
        for case, num in plan.restarts:
            self.restarts(case, num)

    def timelines(self, num_ranks: int) -> dict[str, tuple[float, tuple[Span, ...]]]:
        """Return begin and spans of every launcher's last start of `num_ranks` without model."""
        return {
            case.launcher: (begin, ready.spans)
            for case, (begin, ready) in sorted(self._timelines.items())
            if case.num_ranks == num_ranks and not case.model
        }

    def time(self, case: Case) -> None:
        """Start once and measure the time."""
        with self._started(case) as start:
            _, ready = start.wait([0], _TIMEOUT_S)
            if case.model in _SCRIPTS:
                self._figures(case).whole_s.append(start.tree.wait(_TIMEOUT_S))
        begin = start.tree.started
        self._figures(case).ready_s.append(ready.at - begin)
        self._timelines[case] = (begin, ready)
        _say(f"{case.name}: ready after {ready.at - begin:.2f} s")

    def memory(self, case: Case) -> None:
        """Start once and measure the peak memory until all ranks are ready."""
        with self._started(case) as start:
            sampler = PeakMemory(start.tree, _MEMORY_EVERY_S)
            try:
                start.wait([0], _TIMEOUT_S)
            finally:
                peak = sampler.stop()
        figures = self._figures(case)
        figures.peak_pss_bytes.append(peak.pss_bytes)
        figures.peak_anon_bytes.append(peak.anon_bytes)
        _say(
            f"{case.name}: peak {peak.pss_bytes / 1e6:,.0f} MB, anonymous "
            f"{peak.anon_bytes / 1e6:,.0f} MB"
        )

    def capped(self, case: Case) -> None:
        """Start under a memory limit."""
        if not case.again:
            self._gate = tempfile.TemporaryDirectory(prefix="gate-")
        gate = Path(self._gate.name)
        start_capped(case, self._models.get(case.model), gate, self._figures(case), _say)

    def restarts(self, case: Case, num: int) -> None:
        """Kill a rank `num` times; measure from its death to the next barrier of all ranks."""
        figures = self._figures(case)
        figures.num_restarts = num
        attempts = range(num + 1)
        with self._started(case, restarts=num) as start:
            try:
                attempt, ready = start.wait([0], _TIMEOUT_S)
                while attempt < num:
                    time.sleep(0.5)
                    died = kill(random.choice(ready.pids))  # noqa: S311
                    attempt, ready = start.wait(attempts[attempt + 1 :], _TIMEOUT_S)
                    figures.restart_s.append(ready.at - died)
            except NotReadyError as error:
                _say(f"{case.name}: {error}")
        _say(
            f"{case.name}: {len(figures.restart_s)} of {num} restarts came up, "
            f"the slowest in {max(figures.restart_s, default=0):.2f} s"
        )

    def _started(self, case: Case, restarts: int = 0) -> AbstractContextManager[Start]:
        return started(case, self._models.get(case.model), restarts=restarts)

    def _figures(self, case: Case) -> Figures:
        return self.results.setdefault(case, Figures())


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)  # noqa: T201


@dataclasses.dataclass(frozen=True, slots=True)
class Repeats:
    """The cases to measure, in this order."""

    timed: list[Case] = dataclasses.field(default_factory=list)
    memory: list[Case] = dataclasses.field(default_factory=list)
    capped: list[Case] = dataclasses.field(default_factory=list)
    restarts: list[tuple[Case, int]] = dataclasses.field(default_factory=list)


def quick_plan() -> Repeats:
    """Return a few small cases that take less than three minutes on two cores."""
    four = [Case(name, 4) for name in ("torchrun", "airlock warm")]
    timed = [Case("torchrun", 1), Case("airlock warm", 8), *four]
    capped = [Case("airlock warm", 8, cap_mb=_SMALL_CAP_MB)]
    return Repeats(timed, four, capped, [(Case("airlock warm", 8), 3)])


def full_plan(available: list[str]) -> Repeats:
    """Return every launcher and size once, then the cases that claims compare four times more."""
    every = [
        Case(name, num, model)
        for num in (1, 2, 4, 8, 16, 32)
        for model in ("", "model")
        for name in available
        # Loading in each rank is there only for its slope; the admission modes are for `capped`.
        if name in _MAIN or (name == "airlock imports" and model and num in (8, 32))
    ]
    compared = [
        Case("torchrun", 1),
        Case("torchrun", 8),
        Case("strict lock", 8),
        *(Case("airlock warm", num, model) for num in (8, 32) for model in ("", "model")),
        *(Case("airlock imports", num, "model") for num in (8, 32)),
    ]
    memory = [
        case
        for case in every
        if case.num_ranks == 8 or (case.num_ranks in (1, 32) and case.launcher == "airlock warm")
    ]
    restarts = [(Case("airlock warm", 8), 20), (Case("torchrun", 8), 3)]
    return Repeats(every + compared * 4, memory, restarts=restarts)


def capped_plan(available: list[str]) -> Repeats:
    """Return the cases with a memory cap: a small one to survive, a larger for concurrent loads."""
    small = [Case(name, 8, cap_mb=_SMALL_CAP_MB) for name in ("torchrun", "airlock warm")]
    pickle = [
        Case(name, 8, "pickle", _PICKLE_CAP_MB)
        for name in (
            "airlock cold",
            "airlock cold auto",
            "airlock cold open",
            "torchrun",
            "airlock cold broadcast",
            "airlock warm",
        )
    ]
    compared = [*pickle[:2], dataclasses.replace(pickle[1], again=True)]
    twice = [Case("airlock cold auto", 4, "pickle", _PICKLE_CAP_MB, num_runs=2)]
    cases = small * 3 + compared * 5 + pickle[2:] + twice * 3
    return Repeats(capped=[case for case in cases if case.launcher in available])


def script_plan() -> Repeats:
    """Return scripts that know nothing of Airlock, under torchrun and under Airlock."""
    return Repeats(
        timed=[
            Case(launcher, num, script)
            for script in _SCRIPTS
            for num in (2, 4)
            for launcher in ("torchrun script", "airlock script")
        ]
        * 5
    )


def picture_plan() -> Repeats:
    """Return one start of 8 ranks of each launcher in the README's picture."""
    return Repeats(timed=[Case(name, 8) for name in ("torchrun", "airlock cold", "airlock warm")])


def main() -> None:
    """Measure, print the tables, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument("--quick", action="store_true", help="a few small cases, in 3 minutes")
    parser.add_argument(
        "--only", choices=["launchers", "capped", "scripts", "picture"], help="one part"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="timeline of 8 ranks (.svg)")
    options = parser.parse_args()
    skipped = {name: why for name, one in LAUNCHERS.items() if (why := missing(one))}
    available = [name for name in LAUNCHERS if name not in skipped]
    parts = {
        "launchers": full_plan(available),
        "capped": capped_plan(available),
        "scripts": script_plan(),
    }
    if options.only == "picture":
        parts["picture"] = picture_plan()
    plans = [plan for name, plan in parts.items() if options.only in (None, name)]
    needs_models = not options.quick and options.only != "picture"
    models = (
        {} if not needs_models else {"model": large_checkpoint(), "pickle": pickled_checkpoint()}
    )
    benchmark = Benchmark(models | _SCRIPTS)
    benchmark.run([quick_plan()] if options.quick else plans)
    values, holds = ratios(benchmark.results)
    print_tables(benchmark.results, values)
    if options.picture:
        draw(benchmark.timelines(num_ranks=8), options.picture)
    if options.json:
        cases = {case.name: dataclasses.asdict(one) for case, one in benchmark.results.items()}
        found = {"machine": machine(), "cases": cases, "ratios": values, "holds": holds}
        print(json.dumps({**found, "skipped": skipped | benchmark.skipped}))  # noqa: T201


if __name__ == "__main__":
    main()
