"""The ranks rung: the launcher starts all ranks and they train; whoever fails is named."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil
import pytest

from tests.conftest import Start
from tests.diagnosing import diagnose
from tests.running import hooked, wait_for

AT_STEP = """
real = module.Trainer.update
def update(self, lr):
    if os.environ.get("RANK") == "1" and self._step == 2:
        os.kill(os.getpid(), {})
    return real(self, lr)
module.Trainer.update = update
"""


def test_two_ranks_start_warm_and_train(on_cpu: dict[str, str]) -> None:
    ended = diagnose("ranks", env=on_cpu)
    assert ended.code == 0, ended.output
    assert ended.finding("start")["figures"]["start"] == "warm"
    assert ended.finding("start")["warning"] == ""
    assert ended.finding("ranks")["figures"]["num_ranks"] == 2
    assert len(ended.finding("steps")["figures"]["losses"]) == 4
    assert list(Path(on_cpu["AIRLOCK_RUNS_DIR"]).iterdir()) == []


def test_a_rank_that_is_killed_between_steps_is_named(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    env = on_cpu | hooked(on_cpu, tmp_path, "train.loop", AT_STEP.format(9))
    ended = diagnose("ranks", env=env)
    assert ended.code == 4
    text = ended.finding("run")["text"]
    assert "rank 1" in text
    assert "SIGKILL" in text
    assert ended.finding("run")["do"]


def test_a_rank_that_is_stopped_is_named(on_cpu: dict[str, str], tmp_path: Path) -> None:
    env = on_cpu | hooked(on_cpu, tmp_path, "train.loop", AT_STEP.format(19))
    ended = diagnose("ranks", "--timeout-s", "40", env=env)
    assert ended.code == 4
    text = ended.finding("run")["text"]
    assert "it was not done after 40 s: rank 1 is stopped by a signal" in text


def processes_with(name: str, value: str, *more: str) -> list[psutil.Process]:
    """Live processes that have these variables."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            env = process.environ()
            is_ours = env.get(name) == value and all(one in env for one in more)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.long
def test_ctrl_c_ends_the_ranks_too(airlock: Start, on_cpu: dict[str, str], tmp_path: Path) -> None:
    hook = hooked(on_cpu, tmp_path, "train.loop", AT_STEP.format(19))  # so that it does not end
    process = airlock("check", "ranks", env={"CUDA_VISIBLE_DEVICES": "", **hook})
    gate = ("AIRLOCK_GATE_DIR", on_cpu["AIRLOCK_GATE_DIR"])
    wait_for(lambda: len(processes_with(*gate, "TORCHELASTIC_RUN_ID")) > 1, why="no ranks")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 21, err
    assert "interrupted in ranks" in out
    wait_for(lambda: not processes_with(*gate), why="processes are left behind")
    assert list(Path(on_cpu["AIRLOCK_RUNS_DIR"]).iterdir()) == []


@pytest.mark.long
def test_the_ranks_asked_for_are_started(on_cpu: dict[str, str]) -> None:
    ended = diagnose("ranks", "--num-gpus", "3", "--set", "launch.start=cold", env=on_cpu)
    assert ended.code == 0, ended.output
    assert ended.finding("ranks")["figures"]["num_ranks"] == 3
    assert ended.finding("start")["figures"]["start"] == "cold"


@pytest.mark.gpu
def test_a_rank_for_each_gpu_trains_over_nccl(environ: dict[str, str]) -> None:
    from launch.devices import installed_gpus

    ended = diagnose("ranks", env=environ)
    assert ended.code == 0, ended.output
    assert ended.finding("ranks")["figures"]["num_ranks"] == len(installed_gpus())
