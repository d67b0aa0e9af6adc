"""The parts of `./test.sh --all`: each can run separately, and its time is reported at the end."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath

import pytest

# By file name, without `test_`; a file that is not listed belongs to the part named like its
# folder.
PARTS = {
    "start": (
        "warm_start",
        "cold_instead",
        "script_start",
        "gate_in_runs",
        "loading",
        "environment_of_ranks",
        "fetched_model",
        "tiny",
        "runs",
        "scripts",
    ),
    "kills": (
        "kill_everything",
        "failures",
        "script_failures",
        "restarts",
        "exact_resume",
        "interruption",
        "checkpoint_kills",
        "prepare_kills",
    ),
    "hangs": ("hangs", "hanging_scripts"),
    "sabotage": ("sabotage", "sabotage_of_trainer", "out_of_memory", "incident"),
}
_OF_FILE = {file: part for part, files in PARTS.items() for file in files}


def part_of(nodeid: str) -> str:
    """Return the part that a test belongs to, by its pytest node id."""
    path = PurePath(nodeid.partition("::")[0])
    of_file = _OF_FILE.get(path.stem.removeprefix("test_"))
    return of_file or (path.parts[1] if len(path.parts) > 2 else "setup")


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only",
        action="append",
        metavar="PART",
        default=[],
        help="of the tests run those of PART alone; may be given several times",
    )


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the parts that were asked for with --only.

    Raises:
        pytest.UsageError: there is no such part.
    """
    if not (wanted := set(config.getoption("only"))):
        return
    parts = {item.nodeid: part_of(item.nodeid) for item in items}
    if unknown := wanted - set(parts.values()):
        there_are = ", ".join(sorted(set(parts.values())))
        raise pytest.UsageError(f"no part {sorted(unknown)[0]!r}; there are {there_are}")
    config.hook.pytest_deselected(items=[one for one in items if parts[one.nodeid] not in wanted])
    items[:] = [item for item in items if parts[item.nodeid] in wanted]


def summarise(reporter: pytest.TerminalReporter) -> None:
    """Print a line for each part: the outcomes of its tests, and their total time."""
    seconds: dict[str, float] = defaultdict(float)
    outcomes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for outcome, reports in reporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                part = part_of(report.nodeid)
                seconds[part] += report.duration
                if outcome:  # has one: it is not just set-up or tear-down
                    outcomes[part][outcome] += 1
    if seconds:
        reporter.section("by part, of which ./test.sh --all --only PART runs one")
    for part in sorted(seconds):
        told = ", ".join(f"{num} {outcome}" for outcome, num in sorted(outcomes[part].items()))
        reporter.write_line(f"{part:12} {seconds[part]:6.0f} s  {told}")
