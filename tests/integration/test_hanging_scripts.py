"""Scripts that hang, in each way of tests/hanging.py: cause, rank and lines are named."""

from __future__ import annotations

import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rundir.paths import RunDir
from tests.running import User, as_options, ended, events_of, finish, wait_for

SCRIPT = Path(__file__).parents[1] / "hanging.py"
_LONGEST_S = 300.0  # on a machine that has a lot else to do
pytestmark = pytest.mark.timeout(2 * _LONGEST_S)
_SOON = as_options("launch.hang_timeout_s=4", "launch.admit=open")


@dataclass(frozen=True, slots=True)
class Expected:
    """The cause and the rank that a verdict names; it also names the lines marked in the script."""

    cause: str
    rank: int | None = 1
    has_culprit_line: bool = True


CASES = {
    "skips-a-collective": Expected("collective-mismatch"),
    "one-batch-fewer": Expected("rank-left", has_culprit_line=False),
    "one-batch-fewer-in-an-epoch": Expected("collective-mismatch"),
    "different-collectives": Expected("collective-mismatch"),
    "different-sizes": Expected("collective-mismatch"),
    "different-order": Expected("collective-mismatch", None),
    "barrier-of-rank-0": Expected("collective-mismatch", 0),
    "ends-but-for-a-thread": Expected("rank-left", has_culprit_line=False),
    "exits-early": Expected("rank-left"),
    "stopped": Expected("rank-stopped"),
    "gil-held": Expected("gil-held"),
    "two-locks": Expected("lock-deadlock"),
    "worker-stuck": Expected("data-worker-stuck"),
    "worker-stopped": Expected("data-worker-gone"),
    "worker-forked-with-a-lock": Expected("fork-deadlock"),
    "queue-of-a-dead-process": Expected("child-gone"),
    "sleeps": Expected("rank-behind"),
    "waits-for-a-file": Expected("rank-behind"),
    "python-loop": Expected("rank-behind"),
    "sleeps-beside-nccl": Expected("rank-behind"),
    "link-of-nccl-is-broken": Expected("hang", None, has_culprit_line=False),
    "key-of-nobody": Expected("store-key-missing"),
    "recv-without-send": Expected("no-partner"),
    "waits-for-a-program": Expected("rank-behind"),
    "group-of-one": Expected("collective-mismatch", 0),
    "barrier-with-a-monitor": Expected("rank-behind"),
    "never-joins": Expected("rank-behind"),
    "too-many-to-come": Expected("ranks-missing", None, has_culprit_line=False),
}
_QUICK = (
    "skips-a-collective",
    "sleeps-beside-nccl",
)  # the others, and all of them cold, take minutes
_STARTS = [
    (case, start)
    if case in _QUICK and start == "warm"
    else pytest.param(case, start, marks=pytest.mark.long)
    for case in CASES
    for start in ("warm", "cold")
]


def marked(case: str, mark: str) -> list[str]:
    """Return the places (file:line) of a case's function that bear a comment `# mark`."""
    lines = SCRIPT.read_text().splitlines()
    names = {case.replace("-", "_"), "waits_for_the_other", "spins_in_the_driver", "join"}
    found, function = [], ""
    for number, line in enumerate(lines, 1):
        if begin := re.match(r"(?:def|class) (\w+)", line):
            function = begin[1]
        if function in names and line.endswith(f"# {mark}"):
            found.append(f"hanging.py:{number}")
    return found


def _end(process: subprocess.Popen[str]) -> None:
    for _ in range(2):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    finish(process)


def _all_of(told: dict[str, Any], title: str) -> str:
    """Return the texts of a verdict; its evidence names lines as Python does."""
    evidence = " ".join(
        re.sub(r'"[^"]*/(\w+\.py)", line (\d+)', r"\1:\2", one["text"]) for one in told["evidence"]
    )
    return f"{title} {told['title']} {evidence}"


@pytest.mark.parametrize(("case", "start"), _STARTS)
def test_a_script_that_hangs_has_its_cause_its_rank_and_both_lines_named(
    user: User, case: str, start: str
) -> None:
    words = (*_SOON, "--set", f"launch.start={start}", str(SCRIPT), case)
    with ended(user.airlock("run", *words)) as process:
        run = user.run()
        wait_for(
            lambda: events_of(run, "error", "hang") or process.poll() is not None,
            why="no hang was told",
            timeout_s=_LONGEST_S,
        )
        diagnosis = user.diagnosis(run.path)
        title = next((one["title"] for one in events_of(run, "error", "hang")), diagnosis["title"])
        _end(process)
    expected = CASES[case]
    assert (diagnosis["cause"], diagnosis["rank"]) == (expected.cause, expected.rank), diagnosis
    assert "may be no hang" not in diagnosis["why"], diagnosis
    at_fault = marked(case, "at fault")
    assert bool(at_fault) == expected.has_culprit_line
    if at_fault:
        assert any(re.search(rf"{place}\b", title) for place in at_fault), (title, at_fault)
    waits = [*marked(case, "waits"), *marked(case, "joins")]
    all_of = _all_of(diagnosis, title)
    assert any(re.search(rf"{place}\b", all_of) for place in waits), (diagnosis, waits)


@pytest.mark.long
def test_a_script_that_is_silent_and_does_not_wait_is_said_to_be_not_known(user: User) -> None:
    script = user.folder / "my_train.py"
    script.write_text(
        "import time\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.barrier()\nprint('ready', flush=True)\ntime.sleep(1000)\n"
    )
    with ended(user.airlock("run", "--set", "launch.hang_timeout_s=60", str(script))) as process:
        run = user.run()
        wait_for(lambda: "ready" in _log(run), why="it is not ready")
        diagnosis = wait_for(
            lambda: (found := user.diagnosis(run.path))["confidence"] < 1.0 and found,
            why="still sure",
        )
        assert diagnosis["cause"] == "running", diagnosis
        assert "not known" in diagnosis["title"]
        assert "my_train.py" in str(diagnosis["evidence"])
        assert "no action needed" not in diagnosis["fix"]
        _end(process)


def _log(run: RunDir) -> str:
    log = run.rank_log(0, 0)
    return log.read_text() if log.exists() else ""
