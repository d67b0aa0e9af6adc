"""A command is told what happens in a run; whatever it does itself, the run is not harmed."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from launch.run.supervise import on_event
from launch.run.supervise.notices import NOTICES
from launch.run.supervise.on_event import OnEvent
from machine.processes.descendants import OwnProcesses, is_pid_alive
from machine.processes.signals import Signals
from rundir.errors import ExitCode
from rundir.paths import RunDir
from rundir.schema import spec_of
from state.run_state import new_state
from tests.conftest import ROOT
from tests.running import ended, wait_for

HANG = {
    "kind": "error",
    "name": "hang",
    "failed_rank": 1,
    "cause": "rank-stopped",
    "title": "is stopped; token hf_0123456789SECRET",
    "still_s": 301.0,
    "limit_s": 300.0,
    "ends": True,
}
Told = Callable[[str], OnEvent]


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=1000)


@pytest.fixture
def told(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(on_event, "_SILENT_S", 60.0)  # said on a machine that is busy

    def make(command: str) -> OnEvent:
        state = new_state("20261120-221500-tiny-3f2a", "tiny", 2)
        return OnEvent(RunDir(tmp_path), state, command, OwnProcesses(), console)

    return make


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def facts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_hang_and_the_end_are_told_in_order_with_secrets_masked(
    told: Told, console: Console, tmp_path: Path
) -> None:
    file = tmp_path / "facts"
    teller = told(f"cat >> {file}; echo $AIRLOCK_EVENT >> {tmp_path}/names")
    teller.look([{"kind": "metric", "name": "train"}, HANG])
    teller.end(ExitCode.HANG, Signals())
    hang, failure, end = facts(file)
    assert (tmp_path / "names").read_text().split() == ["hang", "failure", "end"]
    assert (hang["event"], hang["failed_rank"], hang["still_s"]) == ("hang", 1, 301.0)
    assert hang["title"] == "is stopped; token [masked]"
    assert hang["folder"] == failure["folder"] == str(tmp_path)
    assert failure["is_restarted"] is False
    assert (end["event"], end["exit_code"], end["meaning"]) == ("end", 12, "the run hung")
    assert said(console) == ""


def test_a_run_that_has_no_exit_code_yet_ends_as_one_whose_rank_failed(
    told: Told, tmp_path: Path
) -> None:
    told(f"cat >> {tmp_path}/facts").end_of_run(Signals())
    failure, end = facts(tmp_path / "facts")
    assert (failure["event"], end["exit_code"]) == ("failure", ExitCode.RANK_FAILED)


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "echo first; echo; echo 'no route to TOKEN=abcdefgh' >&2; exit 7",
            "ended with 7 for 'end': no route to TOKEN=[masked]\n",
        ),
        ("no-such-command-at-all", "ended with 127 for 'end': "),
        (  # a flood neither blocks nor is kept
            "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 1",
            "ended with 1 for 'end': the end\n",
        ),
    ],
)
def test_a_command_that_fails_is_one_line_with_its_last_words(
    told: Told, console: Console, command: str, line: str
) -> None:
    told(command).end(ExitCode.DONE, Signals())
    assert said(console).startswith(f"airlock: --on-event {line}")
    assert said(console).count("\n") == 1


def test_a_command_that_hangs_is_ended_with_all_that_it_has_started(
    told: Told, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_event, "TIMEOUT_S", 1.0)
    file = tmp_path / "pids"
    told(f"trap '' TERM; sleep 600 & echo $! $$ > {file}; wait").end(ExitCode.DONE, Signals())
    assert "was not done with 'end' in 1 s, and is ended" in said(console)
    for pid in file.read_text().split():
        wait_for(lambda pid=pid: not is_pid_alive(int(pid)), why="it is left")  # type: ignore[misc]


def test_the_end_waits_for_a_limited_time_and_says_what_was_not_told(
    told: Told, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_event, "END_S", 0.5)
    teller = told("sleep 600")
    teller.look([HANG])
    teller.end(ExitCode.HANG, Signals())
    assert "is not done with 'hang', and is ended" in said(console)
    assert "is not told of 'failure', 'end': it took too long before" in said(console)


def test_looking_never_waits_ranks_are_ended_without_it_and_a_stop_ends_it(
    tmp_path: Path, console: Console
) -> None:
    before = set(psutil.Process().children())
    processes = OwnProcesses()
    state = new_state("20261120-221500-tiny-3f2a", "tiny", 2)
    teller = OnEvent(RunDir(tmp_path), state, "sleep 600", processes, console)
    teller.look([HANG])
    (attending,) = set(psutil.Process().children()) - before
    assert processes.alive() == []  # so that the supervisor, ending all of a run, spares it
    signals = Signals()
    signals.ask_to_stop()
    signals.end_now = True
    teller.end(ExitCode.HANG, signals)
    assert "is not done with 'hang', and is ended" in said(console)
    assert not attending.is_running()


_LAUNCHER = """
import sys, time
from pathlib import Path
from rich.console import Console
from machine.processes.descendants import OwnProcesses
from state.run_state import new_state
from launch.run.supervise.on_event import OnEvent
from rundir.paths import RunDir
own = OnEvent(RunDir(Path(sys.argv[1])), new_state("r", "tiny", 1), sys.argv[2], OwnProcesses(),
              Console())
own.look([{"kind": "mark", "name": "restart", "cause": "x", "num_restarts": 1}])
time.sleep(600)
"""


def test_it_dies_with_a_launcher_that_is_killed(tmp_path: Path, environ: dict[str, str]) -> None:
    file = tmp_path / "pids"
    command = f"sleep 600 & echo $! $$ > {file}.part; mv {file}.part {file}; wait"
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(tmp_path), command],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    with ended(launcher):
        wait_for(file.exists, why="it was not called")
        launcher.send_signal(signal.SIGKILL)
        for pid in file.read_text().split():
            wait_for(lambda pid=pid: not is_pid_alive(int(pid)), why="it is left")  # type: ignore[misc]


def test_the_page_about_it_lists_each_event_that_runs_write_with_its_facts() -> None:
    page = (ROOT / "docs/watching.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert rows.keys() == {notice.name for notice in NOTICES.values()} | {"end"}
    for (kind, name), notice in NOTICES.items():
        facts = notice.facts(dict.fromkeys(spec_of(kind, name).fields, 1))
        assert [fact for fact in facts if f"`{fact}`" not in rows[notice.name]] == []
        assert json.dumps(facts)


def test_without_a_command_nothing_is_started(told: Told, console: Console) -> None:
    teller = told("  ")
    teller.look([HANG])
    teller.end(ExitCode.HANG, Signals())
    assert said(console) == ""
