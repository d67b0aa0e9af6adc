"""kill -9 while a checkpoint is saved, many times: the newest complete one always loads.

Every process is a fork of one that has imported torch; each resumes from the newest checkpoint and
saves as fast as it can, until it is killed at a random time.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
import torch._dynamo  # which optimizers import: once here, and not in every fork
from torch import nn

from ranks.group import Alone, Ranks
from rundir.checkpoints import complete_checkpoints, note_evaluation, remove_half_written, step_of
from rundir.paths import RunDir
from train.step import checkpoint

_NUM_KILLS = 20
_WIDTH = 128
_LONGEST_S = 0.25


def training() -> tuple[nn.Linear, torch.optim.Optimizer, Ranks]:
    """Return a model whose weights all equal its step count, and a rank that is alone."""
    torch.set_num_threads(1)
    model = nn.Linear(_WIDTH, _WIDTH, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    model.weight.data.zero_()
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    return model, optimizer, Alone(torch.device("cpu"))


def newest(run: RunDir) -> Path | None:
    found = complete_checkpoints(run.checkpoints)
    return found[-1] if found else None


def save_for_ever(run: RunDir) -> None:
    """Save like a rank, without the training."""
    model, optimizer, ranks = training()
    remove_half_written(run)
    path = newest(run)
    step = 0 if path is None else checkpoint.load(path, model, optimizer, ranks)
    while True:
        step += 1
        model.weight.data.fill_(step)
        optimizer.state[model.weight]["exp_avg"].fill_(step)
        saved = checkpoint.save(run.checkpoints, step, model, optimizer, ranks, keep=2)
        if step % 3 == 0:
            note_evaluation(saved, float(step % 7))


def check(run: RunDir) -> None:
    """Load the newest; check that everything in it is of one step."""
    model, optimizer, ranks = training()
    path = newest(run)
    if path is None:
        return
    assert checkpoint.load(path, model, optimizer, ranks) == step_of(path)
    for found in (model.weight.data, optimizer.state[model.weight]["exp_avg"]):
        assert torch.equal(found, torch.full_like(found, step_of(path)))


def fork(program: object, run: RunDir) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            program(run)  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    return pid


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.runs
def test_the_newest_checkpoint_loads_whenever_a_save_was_killed(tmp_path: Path) -> None:
    run, draw, seen, num_torn = RunDir(tmp_path), random.Random(_NUM_KILLS), 0, 0
    run.checkpoints.mkdir()
    for _ in range(_NUM_KILLS):
        pid = fork(save_for_ever, run)
        before = newest(run)
        deadline = time.monotonic() + 60
        while newest(run) == before and time.monotonic() < deadline:
            time.sleep(0.001)  # it is saving now
        time.sleep(draw.uniform(0, _LONGEST_S))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        num_torn += any(run.checkpoints.glob(".step_*"))
        path = newest(run)
        assert path is not None
        assert step_of(path) > seen
        seen = step_of(path)
        assert os.waitpid(fork(check, run), 0)[1] == 0
    assert num_torn > _NUM_KILLS / 10  # many were hit in the middle
