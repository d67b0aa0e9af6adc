"""From a run's events to TensorBoard's files, read back."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

import pytest

from launch.track.figures import figures_of
from launch.track.tracking_process import track_once
from rundir.errors import UserError
from rundir.events import read_events
from tests.launch.track.runs import HOST, MadeRun
from tests.rundir.test_full_disk import SmallDisk
from tests.running import Typed, python
from tests.tensorboard_files import records, scalars


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path)


def track(made: MadeRun) -> None:
    lines: list[str] = []
    track_once(made.run, "tensorboard", lines.append)
    assert lines == []


def test_every_figure_has_the_name_the_step_and_the_time_it_should(made: MadeRun) -> None:
    made.rank0.emit("metric", "eval", step=0, loss=5.5, exact_match=0.25)
    made.steps(1, 3)
    track(made)
    figures = scalars(made.run.tensorboard)
    assert figures.keys() == {
        "train/loss",
        "train/lr",
        "train/grad_norm",
        "train/tokens_per_s",
        "time/data_s",
        "time/comm_s",
        "eval/loss",
        "eval/exact_match",
    }
    assert [(step, loss) for step, _, loss in figures["train/loss"]] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
    ]
    assert figures["time/data_s"][0][2] == 0.25
    events = read_events(made.run.events)
    assert [t for _, t, _ in figures["train/loss"]] == [event["t"] for event in events[1:]]
    assert figures["eval/exact_match"] == [(0, events[0]["t"], 0.25)]


def test_figures_of_the_host_belong_to_the_last_step_and_each_gpu_has_names_of_its_own(
    made: MadeRun,
) -> None:
    made.launch.emit("metric", "host", **HOST)
    made.steps(1, 2)
    made.launch.emit("metric", "host", **HOST)
    for index in (0, 3):
        made.launch.emit(
            "metric",
            "gpu",
            index=index,
            used_bytes=index,
            total_bytes=8,
            utilization_percent=50,
            temperature_c=60,
            power_w=None,
            power_limit_w=700.0,
            slowed_by=["power cap"],
        )
    track(made)
    figures = scalars(made.run.tensorboard)
    assert [(step, value) for step, _, value in figures["host/pss_bytes"]] == [(0, 700), (2, 700)]
    assert figures["gpu/3/used_bytes"][0][2] == 3
    assert "gpu/3/index" not in figures
    assert figures["gpu/0/power_limit_w"][0][2] == 700
    of_gpus = [name for name in figures if name.startswith("gpu/")]
    assert len(of_gpus) == 10  # neither what is null nor what is no figure


def test_what_is_repeated_after_a_restart_takes_the_place_of_what_it_repeats(
    made: MadeRun,
) -> None:
    made.steps(1, 8)
    made.restart(5)
    made.steps(6, 7, loss=100)
    track(made)
    losses = [(step, loss) for step, _, loss in scalars(made.run.tensorboard)["train/loss"]]
    assert losses == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 106), (7, 107)]


@pytest.mark.parametrize(("text", "number"), [("nan", math.nan), ("inf", math.inf)])
def test_a_loss_that_is_no_number_is_shown_as_that(made: MadeRun, text: str, number: float) -> None:
    made.rank0.emit("metric", "eval", step=1, loss=number, exact_match=None)
    (event,) = read_events(made.run.events)
    assert event["loss"] == text
    assert repr(figures_of(event)["eval/loss"]) == text
    track(made)
    assert repr(scalars(made.run.tensorboard)["eval/loss"][0][2]) == text


def test_lines_that_are_torn_or_of_a_later_version_do_no_harm(made: MadeRun) -> None:
    made.steps(1, 1)
    with made.run.event_file("rank0").open("a") as file:
        file.write('{"kind": "metric", "name": "tr\n')
        file.write('{"kind": "metric", "name": "new", "mono": 1.0, "rank": 0, "t": 1.0}\n')
        file.write('{"kind": "metric", "na')
    track(made)
    assert len(scalars(made.run.tensorboard)["train/loss"]) == 1


def test_tracking_again_replaces_what_was_there(made: MadeRun) -> None:
    made.steps(1, 2)
    track(made)
    (first,) = made.run.tensorboard.iterdir()
    # A run that goes on from another one has nothing to take back.
    assert not any(record.HasField("session_log") for record in records(first))
    before = first.rename(made.run.tensorboard / "events.out.tfevents.1.elsewhere.7")
    made.steps(3, 4)
    track(made)
    assert not before.exists()
    assert len(scalars(made.run.tensorboard)["train/loss"]) == 4  # fails unless it is one file


def test_by_hand_it_takes_one_command(made: MadeRun, typed: Typed) -> None:
    made.steps(1, 2)
    code, out, err = typed("track", str(made.run.path))
    assert (code, err) == (0, "")
    assert f"tensorboard --logdir {shlex.quote(str(made.run.tensorboard))}" in out
    assert len(scalars(made.run.tensorboard)["train/loss"]) == 2
    for args, said in (
        (("nowhere",), "no run 'nowhere'"),
        ((str(made.run.path), "--to", "clouds"), "--to wandb"),
    ):
        err = typed.error_of("track", *args)
        assert said in err


def test_a_full_disk_is_said_and_what_was_there_stays(made: MadeRun, small_disk: Path) -> None:
    made.run.tensorboard.symlink_to(small_disk)
    made.steps(1, 2)
    track(made)
    (before,) = small_disk.iterdir()
    SmallDisk(small_disk).fill()
    made.steps(3, 999)
    with pytest.raises(UserError, match="TensorBoard: No space left on device"):
        track(made)
    assert sorted(small_disk.iterdir()) == sorted([before, small_disk / "filling"])


def test_it_needs_neither_torch_nor_its_memory(made: MadeRun) -> None:
    made.steps(1, 2)
    program = (
        "import sys, pathlib\n"
        "from launch.track.tracking_process import track_once\n"
        "from rundir.paths import RunDir\n"
        f"track_once(RunDir(pathlib.Path({str(made.run.path)!r})), 'tensorboard', print)\n"
        "print('tensorboardX' in sys.modules, 'torch' in sys.modules)"
    )
    assert python(program).split() == ["True", "False"]
