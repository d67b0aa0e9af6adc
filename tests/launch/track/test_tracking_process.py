"""The process alongside a run: it follows, ends with its launcher, and reports why it cannot."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from launch.track.sidecar import Tracking
from launch.track.tracking_process import track_once
from machine.processes.descendants import OwnProcesses
from machine.processes.signals import Signals
from rundir.config import RunConfig, TrainConfig
from rundir.errors import UserError
from rundir.events import read_events
from tests.launch.track.runs import HOST, MadeRun
from tests.running import User, processes_of, wait_for
from tests.tensorboard_files import scalars


class Beside:
    """Tracking as the launcher does it, and its output."""

    def __init__(self, made: MadeRun, environ: dict[str, str], report_to: str = "") -> None:
        self.made, self.run, self._text = made, made.run, io.StringIO()
        config = RunConfig(profile="tiny", train=TrainConfig(report_to=report_to))
        self.tracking = Tracking(
            made.run,
            config,
            environ | {"AIRLOCK_RUN_DIR": str(made.run.path)},
            OwnProcesses(),
            Console(file=self._text, width=1000),
        )

    def look(self) -> None:
        """Look once, as the launcher does in every iteration."""
        self.tracking.look(read_events(self.run.events))

    def says(self) -> list[str]:
        """Return what has been printed so far."""
        self.look()
        return self.lines

    @property
    def lines(self) -> list[str]:
        return self._text.getvalue().splitlines()

    def pid(self) -> int:
        (process,) = processes_of(self.run)
        return process.pid

    def follows(self) -> bool:
        """Return whether its file exists, so that it is past its start."""
        return any(self.run.tensorboard.glob("events.*"))


@pytest.fixture
def beside(tmp_path: Path, environ: dict[str, str]) -> Iterator[Beside]:
    tracked = Beside(MadeRun(tmp_path), environ)
    yield tracked
    signals = Signals()
    signals.end_now = True
    tracked.tracking.end(signals)


def started(beside: Beside) -> None:
    beside.made.steps(1, 2)
    beside.look()
    wait_for(beside.follows, why="nothing was tracked")


def test_nothing_is_started_before_there_is_a_metric_of_training(beside: Beside) -> None:
    beside.made.launch.emit("metric", "host", **HOST)
    beside.look()
    assert processes_of(beside.run) == []
    beside.tracking.end(Signals())
    assert not beside.run.tensorboard.exists()


def test_it_follows_alone_in_a_session_of_its_own_and_at_the_end_has_all_and_is_gone(
    beside: Beside,
) -> None:
    started(beside)
    beside.made.steps(3, 5)
    wait_for(
        lambda: len(scalars(beside.run.tensorboard).get("train/loss", [])) == 5,
        why="the file does not grow while the run goes on",
    )
    pid = beside.pid()
    assert os.getsid(pid) == pid
    own = (str(beside.run.track_log("tensorboard")), str(beside.run.tensorboard), "pipe:")
    opened = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    assert all(any(name in path for name in own) for path in opened), opened
    with pytest.raises(UserError, match="is being tracked by a process of its own"):
        track_once(beside.run, "tensorboard", print)
    beside.made.steps(6, 500)
    beside.tracking.end(Signals())
    assert len(scalars(beside.run.tensorboard)["train/loss"]) == 500
    assert processes_of(beside.run) == []
    assert beside.lines == []


def test_one_that_is_killed_is_one_line_and_no_more(beside: Beside) -> None:
    started(beside)
    os.kill(beside.pid(), signal.SIGKILL)
    wait_for(beside.says, why="nothing was said")
    beside.look()
    beside.tracking.end(Signals())
    assert beside.lines == [
        "airlock: TensorBoard: its process was killed by SIGKILL; the training goes on without it",
        f"  → ./airlock track {beside.run.run_id}   # writes its files anew",
    ]


def test_on_a_full_disk_it_says_so_and_ends(beside: Beside, small_disk: Path) -> None:
    beside.run.tensorboard.symlink_to(small_disk)
    started(beside)
    (small_disk / "filler").write_bytes(b"x" * (900 << 10))
    beside.made.steps(3, 3000)
    wait_for(beside.says, why="nothing was said")
    assert "TensorBoard: No space left on device; the training goes on" in beside.lines[0]


def test_one_that_hangs_does_not_keep_the_run_from_ending(beside: Beside) -> None:
    started(beside)
    pid = beside.pid()
    os.kill(pid, signal.SIGSTOP)
    signals = Signals()
    signals.stop_asked = signals.end_now = True  # a second Ctrl-C; without one it has 10 s
    beside.tracking.end(signals)
    assert beside.lines[0] == "airlock: TensorBoard is not done and is ended"
    assert processes_of(beside.run) == []


def test_a_service_that_cannot_be_had_holds_up_neither_files_nor_training(user: User) -> None:
    (user.folder / "trackio.py").write_text("raise ImportError('no trackio\\nhere')")
    path = os.pathsep.join([str(user.folder), user.environ["PYTHONPATH"]])
    beside = Beside(MadeRun(user.folder), user.environ | {"PYTHONPATH": path}, "trackio")
    beside.made.steps(1, 2)
    beside.look()
    beside.tracking.end(Signals())
    lines = [line for line in beside.lines if not line.startswith("airlock: waiting for ")]
    failure, what_to_do = lines  # on a busy machine it says that it waits
    assert failure == "airlock: trackio: no trackio here; the training goes on without it"
    assert what_to_do.startswith(f"  → ./airlock track {beside.run.run_id} --to trackio ")
    assert len(scalars(beside.run.tensorboard)["train/loss"]) == 2


def test_a_service_that_hangs_at_the_end_has_its_time_and_no_more(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    (user.folder / "trackio.py").write_text(
        "import time\n"
        "def init(**_): pass\n"
        "def log(*_, **__): pass\n"
        "def finish(): print('hangs', flush=True); time.sleep(1000)\n"
    )
    monkeypatch.setattr("launch.track.sidecar._SERVICE_S", 3.0)
    path = os.pathsep.join([str(user.folder), user.environ["PYTHONPATH"]])
    beside = Beside(MadeRun(user.folder), user.environ | {"PYTHONPATH": path}, "trackio")
    beside.made.steps(1, 2)
    beside.look()
    wait_for(beside.says, why="trackio said nothing")
    beside.tracking.end(Signals())
    assert beside.lines[1] == "airlock: waiting for trackio, 3 s at most; Ctrl-C ends that"
    assert beside.lines[2] == "airlock: trackio is not done and is ended"
    assert len(beside.lines) == 4
    assert beside.run.track_log("trackio").read_text() == "hangs\n"
    assert processes_of(beside.run) == []
    assert len(scalars(beside.run.tensorboard)["train/loss"]) == 2
