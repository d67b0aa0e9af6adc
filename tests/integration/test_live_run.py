"""One live run of two ranks: it is watched, and loses what it can do without; then it is stopped.

The tests follow each other: those of the stopped run come last.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import psutil
import pytest

from machine.processes.descendants import is_pid_alive
from rundir.paths import RunDir
from tests.integration.test_environment_of_ranks import (
    KEEP,
    LEFT_OVER,
    assert_no_leftovers,
    assert_reported,
)
from tests.running import (
    ENDLESS,
    SHORT,
    User,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    has_stacks,
    monitors_of,
    processes_of,
    rank_pids,
    wait_for,
    wait_until_training,
)
from tests.tensorboard_files import scalars
from tests.terminal import Terminal

_MASKED = "hf_0123456789abcdefSECRET"
_SLOWER = ("--set", "train.global_batch_size=32")  # fewer events, since it lasts


class Live(NamedTuple):
    """A run that trains, and whose it is."""

    process: subprocess.Popen[str]
    run: RunDir
    user: User

    def goes_on(self, num: int = 1) -> None:
        """Wait until it has trained more steps."""
        seen = len(events_of(self.run, "metric", "train"))
        wait_for(
            lambda: len(events_of(self.run, "metric", "train")) >= seen + num, why="it has stopped"
        )


class Stopped(NamedTuple):
    """What there is of the run after Ctrl-C."""

    code: int
    out: str
    view: Terminal  # of another terminal, in which it was followed to the end
    view_code: int


@pytest.fixture(scope="module")
def live(user_of_all: User) -> Iterator[Live]:
    user, folder = user_of_all, user_of_all.folder
    facts, pids = folder / "facts", folder / "pids"
    tell = f"cat >> {facts}; sleep 600 & echo $! >> {pids}; echo to $HF_TOKEN >&2; exit 3"
    words = (*ENDLESS, *_SLOWER, *KEEP, "--monitor", "--on-event", tell)
    # A pipe that nobody reads would fill up.
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launch", *words],
            cwd=folder,
            env=user.environ | LEFT_OVER | {"HF_TOKEN": _MASKED},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
        )
    with ended(process):
        wait_until_training(user.run())
        yield Live(process, user.run(), user)


@pytest.fixture(scope="module")
def stopped(live: Live) -> Iterator[Stopped]:
    """End the run with Ctrl-C, while another terminal follows it."""
    view = Terminal(1000, 50, live.user.environ, "attach", str(live.run.path))
    try:
        view.read_until("eta ")
        live.process.send_signal(signal.SIGINT)
        code = live.process.wait(200)
        yield Stopped(code, (live.user.folder / "out").read_text(), view, view.read_to_end())
    finally:
        view.process.kill()


def test_variables_left_over_in_a_shell_reach_no_rank_unless_they_are_to_be_kept(
    live: Live,
) -> None:
    assert_no_leftovers(live.run, is_cold=False)


def test_the_pages_of_the_monitor_are_there_while_the_run_lasts(live: Live) -> None:
    log = live.run.monitor_log
    addresses = wait_for(
        lambda: re.findall(r"open (http://\S+?)#token", log.read_text()), why="no monitor"
    )
    with urllib.request.urlopen(addresses[0], timeout=20) as answer:  # noqa: S310 - its own
        assert answer.status == 200
    assert stat.S_IMODE(log.stat().st_mode) == 0o600  # its token is in there


def test_a_terminal_that_follows_the_run_leaves_it_with_ctrl_c(live: Live) -> None:
    view = Terminal(80, 24, live.user.environ, "attach", str(live.run.path))
    try:
        view.read_until("attached to ")
        view.read_until("eta ")
        view.process.send_signal(signal.SIGINT)
        assert view.read_to_end() == 0
    finally:
        view.process.kill()
    assert f"left {live.run.run_id}, which goes on" in view.text
    assert "stop " in view.text
    live.goes_on()
    lines = view.lines()
    begun = next(at for at, line in enumerate(lines) if line.startswith("airlock: attached"))
    assert max(map(len, lines[begun + 1 :])) <= 82  # a typed Ctrl-C is echoed within a line
    whole = any("loss " in line and "eta " in line for line in lines)
    assert whole, view.text[-3000:]  # all of it, on 80 columns


def test_every_rank_writes_its_stacks_to_its_log_at_sigusr2(live: Live) -> None:
    for pid in rank_pids(live.run).values():
        os.kill(pid, signal.SIGUSR2)
    for rank in (0, 1):
        wait_for(partial(has_stacks, live.run.rank_log(rank, 0)), why="no stacks")
    live.goes_on()


def test_a_trace_on_a_full_disk_never_ends_the_training(live: Live) -> None:
    live.run.traces.write_text("a file where the folder has to be")
    code, out, err = live.user.finish("trace", live.run.run_id, "--steps", "1")
    assert code == 10
    assert "rank 1 has no trace" in out
    assert "its training goes on" in err
    live.goes_on()


@pytest.mark.parametrize("helper", ["resource_tracker", "keeper", "launch.track"])
def test_it_does_without_its_small_helpers(live: Live, helper: str) -> None:
    wait_for(lambda: any(live.run.tensorboard.glob("events.*")), why="nothing is tracked")
    helper_of(live, helper).kill()
    live.goes_on(6)


def helper_of(live: Live, helper: str) -> psutil.Process:
    if helper == "keeper":  # it has none of the run's environment
        children = psutil.Process(live.process.pid).children()
        return next(one for one in children if "keeper.py" in " ".join(one.cmdline()))
    return next(one for one in processes_of(live.run) if helper in " ".join(one.cmdline()))


def test_ctrl_c_ends_it_with_a_checkpoint_and_leaves_nothing(live: Live, stopped: Stopped) -> None:
    assert stopped.code == 20, (live.user.folder / "err").read_text()
    assert_nothing_left(live.run)
    wait_for(lambda: not monitors_of(live.run), why="the monitor stays")
    assert_reported(live.run, stopped.out)
    assert "airlock: monitor: http://127.0.0.1:" in stopped.out
    assert "#token" not in stopped.out


def test_who_follows_it_elsewhere_sees_its_end_and_the_log_is_what_its_console_said(
    live: Live, stopped: Stopped
) -> None:
    assert stopped.view_code == 20
    report = stopped.out[stopped.out.index("\ninterrupted; ") :].strip().splitlines()
    assert set(report) <= {line.rstrip() for line in stopped.view.lines()}
    shown = [line.rstrip() for line in stopped.out.splitlines()]
    assert live.run.run_log.read_text().splitlines() == shown


def test_the_end_is_told_once_with_secrets_masked_and_no_child_is_left(
    live: Live, stopped: Stopped
) -> None:
    (end,) = [json.loads(line) for line in (live.user.folder / "facts").read_text().splitlines()]
    assert (end["event"], end["exit_code"], end["run"]) == ("end", 20, live.run.run_id)
    assert end["phase"] == "interrupted"
    assert end["last_checkpoint"] == end["step"] > 0
    assert "--on-event ended with 3 for 'end': to [masked]" in stopped.out
    assert _MASKED not in stopped.out + (live.user.folder / "err").read_text()
    pids = (live.user.folder / "pids").read_text().split()
    assert not any(is_pid_alive(int(pid)) for pid in pids)


def test_what_was_not_tracked_can_be_written_later(live: Live, stopped: Stopped) -> None:
    said = "TensorBoard: its process was killed by SIGKILL; the training goes on"
    assert stopped.out.count(said) == 1
    assert live.user.finish("track", live.run.run_id)[0] == 0
    shown = [step for step, *_ in scalars(live.run.tensorboard)["train/loss"]]
    assert shown == [event["step"] for event in events_of(live.run, "metric", "train")]


@pytest.mark.long
def test_a_run_goes_on_without_its_monitor(user: User) -> None:
    with ended(user.airlock(*SHORT, "--monitor")) as process:
        run = user.run()
        (monitor,) = wait_for(lambda: monitors_of(run), why="no process")
        monitor.kill()
        code, _, err = finish(process)
    assert code == 0, err
