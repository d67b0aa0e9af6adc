"""The ranks rung: the launcher starts all ranks and they train; one that fails is named."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rundir.paths import RunDir
from tests.diagnosing import diagnose
from tests.running import Start, assert_nothing_left, ended, events_of, hooked, wait_for

pytestmark = pytest.mark.runs  # starts real ranks

AT_STEP = """
real = module.Trainer.update
def update(self, lr):
    if os.environ.get("RANK") == "1" and self._step == 2:
        os.kill(os.getpid(), {})
    return real(self, lr)
module.Trainer.update = update
"""


def test_two_ranks_start_warm_and_train(on_cpu: dict[str, str]) -> None:
    done = diagnose("ranks", env=on_cpu)
    assert done.code == 0, done.output
    assert done.finding("start")["figures"]["start"] == "warm"
    assert done.finding("start")["warning"] == ""
    assert done.finding("ranks")["figures"]["num_ranks"] == 2
    assert len(done.finding("steps")["figures"]["losses"]) == 4
    assert list(Path(on_cpu["AIRLOCK_RUNS_DIR"]).iterdir()) == []


def test_a_rank_that_is_killed_between_steps_is_named(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    env = on_cpu | hooked(on_cpu, tmp_path, "train.step.loop", AT_STEP.format(9))
    done = diagnose("ranks", env=env)
    assert done.code == 4
    text = done.finding("run")["text"]
    assert "rank 1" in text
    assert "SIGKILL" in text
    assert done.finding("run")["do"]


@pytest.mark.long
def test_ctrl_c_ends_the_ranks_too(airlock: Start, on_cpu: dict[str, str], tmp_path: Path) -> None:
    hook = hooked(
        on_cpu, tmp_path, "train.step.loop", AT_STEP.format(19)
    )  # so that it does not end
    runs = Path(on_cpu["AIRLOCK_RUNS_DIR"])
    with ended(airlock("check", "ranks", env={"CUDA_VISIBLE_DEVICES": "", **hook})) as process:
        paths = wait_for(lambda: list(runs.glob("*/latest/events/rank1.jsonl")), why="no rank 1")
        run = RunDir(paths[0].parents[1].resolve())
        wait_for(lambda: len(events_of(run, "metric", "train")) > 1, why="no steps")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 21, err
    assert "interrupted in ranks" in out
    assert_nothing_left(run)
    assert list(runs.iterdir()) == []


@pytest.mark.long
def test_the_ranks_asked_for_are_started(on_cpu: dict[str, str]) -> None:
    done = diagnose("ranks", "--num-gpus", "3", "--set", "launch.start=cold", env=on_cpu)
    assert done.code == 0, done.output
    assert done.finding("ranks")["figures"]["num_ranks"] == 3
    assert done.finding("start")["figures"]["start"] == "cold"


@pytest.mark.gpu
def test_a_rank_for_each_gpu_trains_over_nccl(environ: dict[str, str]) -> None:
    from machine.gpus.devices import installed_gpus

    done = diagnose("ranks", env=environ)
    assert done.code == 0, done.output
    assert done.finding("ranks")["figures"]["num_ranks"] == len(installed_gpus())
