"""Leftovers of runs: found by what identifies them, and ended without hitting anything else."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from machine.processes import runs as run_processes
from machine.processes.runs import processes_of
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.status import RankStatus, Status, write_status
from tests.launch.checks.conftest import Machine, Row
from tests.launch.run_folders import owned
from tests.running import Start, Typed, User, ended, finish, wait_for
from tests.running import processes_of as of_run
from tests.scripts import script

DEAF = "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"


@pytest.fixture
def run(environ: dict[str, str]) -> RunDir:
    """Return a run folder whose launcher is dead."""
    folder = RunDir(Path(environ["AIRLOCK_RUNS_DIR"]) / "20260101-000000-tiny-abcd")
    folder.events.mkdir(parents=True)
    folder.control.mkdir()
    folder.config.touch()
    with subprocess.Popen(["true"]) as dead:
        pass
    status = Status(run_id=folder.run_id, profile="tiny", phase="training", launch_pid=dead.pid)
    write_status(folder, status)
    return folder


@contextlib.contextmanager
def left_over(run: RunDir, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process of `run`, and yield it once it says that it is ready."""
    env = os.environ | {"AIRLOCK_RUN_DIR": str(run.path)}
    program = command or (sys.executable, "-c", DEAF)
    with subprocess.Popen(program, env=env, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def about(run: RunDir, machine: Machine) -> Row:
    """Return the finding about `run`: other runs on this machine are not our business."""
    rows = machine.rows()["leftovers"]
    return next((row for row in rows if row["figures"].get("run") == run.run_id), {})


def test_what_a_dead_run_has_left_is_a_warning_with_the_command_that_ends_it(
    machine: Machine, run: RunDir
) -> None:
    with left_over(run) as process:
        row = about(run, machine)
        assert row["ok"]
        assert row["figures"]["pids"] == [str(process.pid)]
    said = f"run {run.run_id} is dead and has left 1 process: pid {process.pid}  0:0"
    assert row["warning"].startswith(said)
    assert sys.executable in row["warning"]
    assert row["do"] == f"./airlock stop {run.run_id}   # ends exactly these"
    assert about(run, machine) == {}


def test_a_run_whose_launcher_lives_is_nobodys_concern(machine: Machine, run: RunDir) -> None:
    EventWriter(run.event_file("launch"))  # as its launcher, which this process now is
    status = Status(run_id=run.run_id, profile="tiny", launch_pid=os.getpid())
    write_status(run, status)
    with left_over(run):
        assert about(run, machine) == {}
        assert processes_of(run).launcher == psutil.Process()
        # The pid in the status alone proves nothing: by now it may belong to another program.
        write_status(run, Status(run_id=run.run_id, profile="tiny", launch_pid=1))
        assert processes_of(run).launcher == psutil.Process()


def test_a_process_that_has_the_launchers_pid_by_chance_is_not_the_launcher(run: RunDir) -> None:
    with left_over(run), subprocess.Popen(["sleep", "60"]) as stranger:
        write_status(run, Status(run_id=run.run_id, profile="tiny", launch_pid=stranger.pid))
        assert processes_of(run).launcher is None
        stranger.kill()


@pytest.mark.parametrize("phase", ["done", None])
def test_ranks_that_somebody_started_by_hand_are_no_leftovers(
    machine: Machine, typed: Typed, run: RunDir, phase: str | None
) -> None:
    if phase is None:
        run.status.unlink()
    else:
        write_status(run, Status(run_id=run.run_id, profile="tiny", phase=phase))
    with left_over(run):
        assert about(run, machine) == {}
        assert f"{phase or 'unknown'}, without a launcher, 1 process" in typed("ps")[1]


def test_what_is_left_of_a_run_whose_folder_was_removed_is_a_warning(
    machine: Machine, run: RunDir
) -> None:
    with left_over(run):
        shutil.rmtree(run.path)
        assert f"run {run.run_id} is dead" in about(run, machine)["warning"]


@pytest.mark.runs
def test_stop_ends_exactly_the_processes_of_the_dead_run(airlock: Start, run: RunDir) -> None:
    other = RunDir(run.path.with_name("20260101-000001-tiny-ffff"))
    other.path.mkdir()
    with (
        left_over(run) as deaf,
        left_over(run, "sh", "-c", "echo; sleep 600"),
        left_over(other) as spared,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as stranger,
    ):
        code, out, err = finish(airlock("stop", run.run_id))
        assert (code, err) == (0, "")
        assert f"{run.run_id}: ended " in out
        wait_for(lambda: deaf.poll() is not None, why="it lives")
        assert deaf.returncode == -signal.SIGKILL  # it was asked first, and did not react
        assert processes_of(run).processes == []
        assert spared.poll() is None
        assert stranger.poll() is None
        stranger.kill()


def test_a_process_that_has_got_the_pid_of_a_leftover_is_not_hit(run: RunDir) -> None:
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    if os.geteuid() != 0 or not os.access(last_pid, os.W_OK):
        pytest.skip("the next pid cannot be chosen here")
    with left_over(run) as process:
        (found,) = processes_of(run).processes
        process.kill()
        process.wait()
        for _ in range(50):  # others start processes too
            last_pid.write_text(str(process.pid - 1))
            with subprocess.Popen(["sleep", "60"]) as stranger:
                if stranger.pid == process.pid:
                    run_processes._signal_all([found], psutil.Process.kill, 0.1)
                    assert stranger.poll() is None
                    stranger.kill()
                    return
                stranger.kill()
    pytest.skip("the pid could not be had again")


@pytest.mark.runs
def test_a_run_whose_folder_is_gone_can_be_stopped_all_the_same(
    airlock: Start, run: RunDir
) -> None:
    with left_over(run) as process:
        run.config.unlink()
        assert finish(airlock("stop", run.run_id))[0] == 0
        wait_for(lambda: process.poll() is not None, why="it lives")


@pytest.mark.parametrize("phase", ["done", "failed", "interrupted"])
def test_a_run_that_is_over_needs_no_stop(typed: Typed, run: RunDir, phase: str) -> None:
    write_status(run, Status(run_id=run.run_id, profile="tiny", phase=phase))
    err = typed.error_of("stop", run.run_id)
    assert f"run {run.run_id} is over: {phase}" in err


def test_a_run_without_a_process_here_is_asked_through_its_folder(
    typed: Typed, run: RunDir
) -> None:
    out = typed.output_of("stop", run.run_id)
    assert "has no process here; it is asked through its folder to stop" in out
    assert (run.control / "stop").exists()


def test_ps_shows_live_and_dead_runs_and_which_process_is_which_rank(
    typed: Typed, run: RunDir
) -> None:
    with left_over(run) as process, left_over(run) as worker:
        rows = [RankStatus(rank=3, phase="training", pid=process.pid)]
        write_status(run, Status(run_id=run.run_id, profile="tiny", phase="training", ranks=rows))
        out = typed("ps")[1]
    assert f"{run.run_id}  training, its launcher is dead, 2 processes\n  pid " in out
    lines = [line for line in out.splitlines() if f"pid {process.pid} " in line]
    assert lines[0].endswith("  rank 3, training")
    assert any(f"pid {worker.pid} " in line and "python" in line for line in out.splitlines())
    assert run.run_id not in typed("ps")[1]


def test_stop_names_the_runs_that_are_going_on_unless_one_is_named(
    typed: Typed, run: RunDir
) -> None:
    code, _, err = typed("stop")
    assert (code, run.run_id in err) == (2, False)
    with left_over(run):
        code, _, err = typed("stop")
    assert code == 2
    assert f"→ ./airlock stop {run.run_id}" in err
    err = typed.error_of("stop", "nonsense")
    assert "no run 'nonsense'" in err


def test_a_run_whose_owner_died_is_dead_and_not_asked_to_stop(typed: Typed, run: RunDir) -> None:
    with owned(run):
        pass
    code, out, err = typed("stop", run.run_id)
    assert (code, out) == (2, "")
    assert f"run {run.run_id} is dead: " in err
    assert f"→ ./airlock doctor {run.run_id}" in err
    assert not (run.control / "stop").exists()


@pytest.mark.runs
def test_leftovers_of_a_killed_run_are_found_named_and_ended(user: User, machine: Machine) -> None:
    # A rank that starts a process that outlives it: launcher and keeper are killed at once.
    path = script(
        user.folder,
        """
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left-over"])
        time.sleep(600)
        """,
    )
    with ended(user.airlock("run", "--num-gpus", "1", path)) as process:
        folder = Path(user.environ["AIRLOCK_RUNS_DIR"]) / "latest"
        wait_for(folder.exists, why="no run")
        run = RunDir(folder.resolve())

        def the_leftover() -> list[psutil.Process]:
            return [one for one in of_run(run) if "left-over" in one.cmdline()]

        (left,) = wait_for(the_leftover, why="the rank has started nothing")
        family = psutil.Process(process.pid).children()
        keeper = [one for one in family if any("keeper" in word for word in one.cmdline())]
        for one in [*keeper, psutil.Process(process.pid)]:
            one.kill()
        wait_for(lambda: len(of_run(run)) == 1, why="ranks do not die with their agent")
        assert f"pid {left.pid}  " in about(run, machine)["warning"]
        assert user.finish("stop", run.run_id)[0] == 0
        wait_for(lambda: not left.is_running(), why="it lives on")
