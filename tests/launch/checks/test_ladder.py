"""Climbing the ladder: in order, up to the first failure, with nothing left behind.

The rungs are stand-ins in a copy of the program; tests/diagnostics tests the real ones.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from launch.checks.rungs import NAMES, RUNGS
from tests.diagnosing import ROOT, clone, environment
from tests.running import Typed, wait_for

_STAND_IN = """
import os, sys, time
from diagnostics.probes.rung import rung
from rundir.finding import Finding

@rung({name!r})
def main(findings, request, timeout_s):
    {body}
    findings.finish({name!r} + " says so")

if __name__ == "__main__":
    main()
"""
_GREEN = "findings.add(Finding(check='one', ok=True, text='right'))"
_RED = "findings.add(Finding(check='two', ok=False, text='wrong', do='mend it'))"


class Ladder:
    """A copy of the program whose rungs are stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.root, self.tmp = clone(folder / "clone"), folder / "tmp"
        self.tmp.mkdir()
        for name in NAMES:
            self.put(name, _GREEN)

    def put(self, name: str, body: str) -> None:
        """Make `body` the body of that rung."""
        path = self.root / "diagnostics" / f"{name}.py"
        body = textwrap.indent(textwrap.dedent(body).strip(), "    ").strip()
        path.write_text(_STAND_IN.format(name=name, body=body), encoding="utf-8")

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start `airlock check ARGS`."""
        env = environment(root=self.root, TMPDIR=str(self.tmp), AIRLOCK_RUNS_DIR=str(self.tmp))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "launch", "check", *args],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def check(self, *args: str) -> tuple[int, str]:
        """Return (exit code, output)."""
        process = self.start(*args)
        out, err = process.communicate(timeout=200)
        return process.returncode, out + err

    def summary(self, *args: str) -> tuple[int, dict[str, Any]]:
        """Return (exit code, the object printed by --json)."""
        code, out = self.check("--json", *args)
        return code, json.loads(out)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Ladder:
    """Return a ladder for all tests of this file."""
    return Ladder(tmp_path_factory.mktemp("ladder"))


@pytest.fixture
def ladder(copied: Ladder) -> Ladder:
    """Return the ladder, with rungs that all pass."""
    for name in NAMES:
        copied.put(name, _GREEN)
    return copied


def test_all_goes_on_after_a_red_rung_with_figures_for_each(ladder: Ladder) -> None:
    ladder.put("basic", _RED)
    code, found = ladder.summary("--all")
    assert code == 4
    assert [rung["rung"] for rung in found["rungs"]] == list(NAMES)
    assert [rung["rung"] for rung in found["rungs"] if not rung["ok"]] == ["basic"]
    assert found["rungs"][1]["do"] == "mend it"
    for rung in found["rungs"]:
        assert rung["seconds"] > 0
        assert 0 < rung["peak_rss_bytes"] < rung["vm_peak_bytes"]
    assert found["not_reached"] == []


def test_the_first_red_rung_ends_the_climb_and_says_what_to_type(ladder: Ladder) -> None:
    ladder.put("basic", _RED)
    code, out = ladder.check()
    assert code == 4
    rows = [line.split()[:2] for line in out.splitlines()]
    assert ["environment", "ok"] in rows
    assert ["basic", "FAIL"] in rows
    assert not any(row[:1] == ["imports"] for row in rows)
    assert f"not reached: {', '.join(NAMES[2:])}" in out
    assert "  → mend it" in out
    assert "./airlock check basic --profile=tiny   # again" in out


def test_a_rung_can_be_climbed_alone_and_its_time_and_warnings_are_told(ladder: Ladder) -> None:
    ladder.put("basic", _RED)
    mind = "Finding(check='it', ok=True, text='', warning='mind', do='x')"
    ladder.put("data", f"time.sleep(0.5); findings.add({mind})")
    begun = time.monotonic()
    code, found = ladder.summary("data")
    assert (code, [rung["rung"] for rung in found["rungs"]]) == (0, ["data"])
    assert 0.5 < found["rungs"][0]["seconds"] <= time.monotonic() - begun
    code, out = ladder.check("data")
    assert code == 0
    assert "warning: it: mind  → x" in out
    assert "data is green" in out


def test_what_was_asked_for_is_handed_on_to_the_rung(ladder: Ladder) -> None:
    ladder.put(
        "data",
        """
        asked = (request.profile, request.num_gpus, request.data, request.settings)
        findings.add(Finding(check='it', ok=False, text=repr(asked), do='mend it'))
        """,
    )
    args = ("--profile", "tiny", "--num-gpus", "3", "--data", "my rows", "--set", "train.seed=7")
    code, out = ladder.check("data", *args)
    assert code == 4
    assert "it: ('tiny', 3, 'my rows', ('train.seed=7',))" in out
    options = "--profile=tiny '--data=my rows' --num-gpus=3 --set=train.seed=7"
    assert f"./airlock check data {options}   # again" in out


@pytest.mark.parametrize(
    "args",
    [("nowhere",), ("--profile", "33b"), ("--set", "train.sed=1"), ("--set", "train.seed=x")],
)
def test_what_means_nothing_is_a_wrong_command_line(typed: Typed, args: tuple[str, ...]) -> None:
    assert typed("check", *args)[0] == 2


def test_a_rung_that_is_killed_is_red_with_its_last_words_and_leaves_no_short_run(
    ladder: Ladder,
) -> None:
    ladder.put(
        "model",
        """
        from launch.checks.run_rung import SHORT_RUNS
        from rundir.paths import runs_folder
        (runs_folder() / f"{SHORT_RUNS}{os.getpid()}-x").mkdir()
        print('so far', flush=True)
        os.kill(os.getpid(), 9)
        """,
    )
    code, out = ladder.check("model")
    assert code == 4
    assert "model        FAIL" in out
    assert "SIGKILL" in out
    assert "| so far" in out
    assert "./airlock check model" in out
    assert list(ladder.tmp.iterdir()) == []


def test_a_rung_that_hangs_ends_with_its_stacks(ladder: Ladder) -> None:
    ladder.put("model", "time.sleep(3600)")
    code, out = ladder.check("model", "--timeout-s", "1")
    assert code == 4
    assert "Timeout" in out
    assert "diagnostics/model.py" in out


@pytest.mark.long
def test_a_rung_that_cannot_even_end_itself_is_given_up(ladder: Ladder) -> None:
    ladder.put("model", "os.kill(os.getpid(), 19)")
    code, out = ladder.check("model", "--timeout-s", "1")
    assert code == 4
    assert "it printed nothing any more" in out


def sleeping(ladder: Ladder) -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start a rung in which a child process sleeps; return the command and the child."""
    pid_file = ladder.tmp / "pid"
    ladder.put(
        "basic",
        """
        from machine.processes import children
        children.start("diagnostics.sleeper", env=dict(os.environ)).wait()
        """,
    )
    (ladder.root / "diagnostics/sleeper.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(f'{{os.getpid()}}')\n"
        "time.sleep(3600)\n"
    )
    process = ladder.start("basic")
    text = wait_for(lambda: pid_file.exists() and pid_file.read_text(), why="no rung sleeps")
    pid_file.unlink()
    return process, psutil.Process(int(str(text)))


def test_ctrl_c_ends_the_climb_and_leaves_nothing(ladder: Ladder) -> None:
    process, sleeper = sleeping(ladder)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 21
    assert "interrupted in basic" in out
    wait_for(lambda: not sleeper.is_running(), why="a process is left")
    assert list(ladder.tmp.iterdir()) == []


def test_a_rung_dies_with_the_command(ladder: Ladder) -> None:
    process, sleeper = sleeping(ladder)
    process.kill()
    process.communicate()
    wait_for(lambda: not sleeper.is_running(), why="a process is left")
    for left in ladder.tmp.iterdir():
        shutil.rmtree(left)  # of the command, which could not


def test_every_rung_is_described_and_is_a_module() -> None:
    page = (ROOT / "docs/checks.md").read_text(encoding="utf-8")
    for rung in RUNGS:
        assert f"\n| {rung.name} | " in page
        assert (ROOT / f"{rung.module.replace('.', '/')}.py").is_file()


def test_rungs_that_need_a_gpu_are_not_run_where_the_profile_lacks_it(ladder: Ladder) -> None:
    ladder.put("environment", _RED)  # as the real one is then
    ladder.put("single_gpu", _RED)
    code, out = ladder.check("--profile", "32b", "--all")
    assert code == 4
    rows = [line.split()[:2] for line in out.splitlines()]
    assert [row for row in rows if row[:1] and row[0] in NAMES] == [
        ["environment", "FAIL"],
        ["basic", "ok"],
        ["imports", "ok"],
    ]
    rest = "collectives, data, model, single_gpu, medium, ranks"
    assert f"environment failed; not run, for want of a GPU: {rest}" in out
    assert ladder.summary("--profile", "32b")[1]["not_reached"] == list(NAMES[1:])
    # One that was named is run, to say itself what it lacks.
    assert ladder.check("single_gpu", "--profile", "32b")[0] == 4
