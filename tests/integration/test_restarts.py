"""Restarts: after a failure all ranks restart from the last checkpoint, and not for ever."""

from __future__ import annotations

import os
import re
import signal

import pytest

from rundir.paths import RunDir
from rundir.status import read_status
from tests.integration.test_exact_resume import curve
from tests.running import (
    SHORT,
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    hooked,
    rank_pids,
    wait_for,
    zygote_pid,
)
from tests.tensorboard_files import scalars

# Long enough to be hit in the middle, with a checkpoint to resume from.
_LONGER = (
    *SHORT,
    *as_options(
        "train.max_steps=80",
        "train.checkpoint_every_steps=5",
        "data.eval_path=",
        "launch.restart_backoff_s=0.1",
    ),
)


_ENDLESS = ("--set", "train.max_steps=1000000")


def wait_for_step(run: RunDir, step: int, attempt: int) -> None:
    def is_there() -> bool:
        events = events_of(run, "metric", "train")
        return any(e["attempt"] == attempt and e["step"] >= step for e in events)

    wait_for(is_there, why=f"no step {step} in attempt {attempt}")


def zygote_pids(run: RunDir) -> set[int]:
    marks = events_of(run, "mark", "mem.start")
    return {event["pid"] for event in marks if event["rank"] is None}


def last_zygote(run: RunDir) -> int:
    return int(events_of(run, "mark", "zygote.ready")[-1]["pid"])


@pytest.mark.parametrize("start", ["warm", pytest.param("cold", marks=pytest.mark.long)])
def test_killed_ranks_are_started_again_and_go_on_from_the_last_checkpoint(
    user: User, start: str
) -> None:
    options = ("--max-restarts", "3", "--set", f"launch.start={start}")
    with ended(user.airlock(*_LONGER, *options)) as process:
        run = user.run()
        for attempt, victim, step in ((0, 1, 8), (1, 0, 18)):
            wait_for_step(run, step, attempt)
            os.kill(rank_pids(run)[victim], signal.SIGKILL)
        code, out, err = finish(process)
    assert code == 0, out + err
    assert "airlock: rank 1 killed by SIGKILL: restart 1 of 3" in out
    assert "airlock: rank 0 killed by SIGKILL: restart 2 of 3" in out
    found = curve(run)
    assert sorted(found) == list(range(1, 81))
    assert all(len(of_step) == 1 for of_step in found.values())  # bit for bit the same
    shown = [step for step, *_ in scalars(run.tensorboard)["train/loss"]]
    assert shown == sorted(found)  # including repeated ones, each only once
    plans = events_of(run, "mark", "train.plan")
    assert [plan["attempt"] for plan in plans] == [0, 1, 2]
    assert plans[1]["first_step"] >= 5
    assert plans[2]["first_step"] >= 15
    status = read_status(run)
    assert (status["attempt"], status["phase"], status["error"]) == (2, "done", None)
    assert all(run.rank_log(rank, attempt).exists() for rank in (0, 1) for attempt in range(3))
    zygotes = {event["pid"] for event in events_of(run, "mark", "zygote.ready")}
    assert len(zygotes) == (1 if start == "warm" else 0)
    assert_nothing_left(run)


@pytest.mark.long
def test_when_the_zygote_dies_a_restart_has_another_one_and_ctrl_c_meanwhile_ends_at_once(
    user: User,
) -> None:
    with ended(user.airlock(*_LONGER, *_ENDLESS, "--max-restarts", "2")) as process:
        run = user.run()
        wait_for_step(run, 8, 0)
        os.kill(zygote_pid(run), signal.SIGKILL)
        wait_for_step(run, 12, 1)
        assert [event["start"] for event in events_of(run, "mark", "start")] == ["warm", "warm"]
        assert len({event["pid"] for event in events_of(run, "mark", "zygote.ready")}) == 2
        before = zygote_pids(run)
        os.kill(last_zygote(run), signal.SIGKILL)
        wait_for(lambda: zygote_pids(run) - before, why="no third zygote was started")
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process, timeout_s=20)
    assert code == 20, out
    assert "airlock: the zygote killed by SIGKILL: restart 1 of 2" in out
    assert "--resume" in out
    steps = sorted(curve(run))
    assert steps == list(range(1, steps[-1] + 1))
    assert_nothing_left(run)


def test_after_a_restart_what_a_killed_rank_had_half_written_is_gone_and_ctrl_c_saves(
    user: User,
) -> None:
    with ended(user.airlock(*_LONGER, *_ENDLESS, "--max-restarts", "1")) as process:
        run = user.run()
        wait_for_step(run, 8, 0)
        (run.checkpoints / ".step_00000009.abc").mkdir()
        os.kill(rank_pids(run)[0], signal.SIGKILL)
        wait_for_step(run, 12, 1)
        assert not list(run.checkpoints.glob(".step_00000009*"))
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process)
    assert code == 20, out
    assert_nothing_left(run)


def test_what_fails_every_time_fails_in_the_end_with_its_traceback(user: User) -> None:
    body = """
def meet(*args):
    raise ZeroDivisionError(f"in attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}")
module.meet = meet
"""
    env = user.hooked("ranks.group", body)
    out = user.output_of(*_LONGER, "--max-restarts", "2", env=env, code=10)
    assert out.rstrip().splitlines()[-1] == "ZeroDivisionError: in attempt 2"
    assert re.search(r"restarted before: rank \d raised ZeroDivisionError: in attempt 0; rank", out)
    waits = [line for line in out.splitlines() if "RESTART:" in line]
    assert all("RESTART: attempt 2 of 2 starts in 0.1 s" in line for line in waits)
    assert len(waits) == 2  # the first restart came at once
    run = user.run()
    assert read_status(run)["attempt"] == 2
    assert_nothing_left(run)


def test_an_error_that_only_the_user_can_mend_is_not_tried_again(user: User) -> None:
    body = """
def meet(*args):
    from rundir.errors import UserError
    raise UserError("the data have no row", do="--data FILE", code=5)
module.meet = meet
"""
    env = user.hooked("ranks.group", body)
    out = user.output_of(*_LONGER, "--max-restarts", "2", env=env, code=5)
    assert "not restarted: it would end the same way" in out
    assert "the data have no row" in out
    run = user.run()
    assert read_status(run)["attempt"] == 0
    assert not events_of(run, "mark", "restart")
    assert_nothing_left(run)


# On a CPU the plan has no limit: these choose one block, and let no step through but with all.
_ONE_BLOCK = """
decided = module.Ways.decided
module.Ways.are_open = property(lambda self: True, lambda self, value: None)
module.Ways.decided = lambda self, plan: module.Decided(
    bf16_updates=decided(self, plan).bf16_updates, gradient_checkpointing=1)
"""
_FULL_WITHOUT = """
import torch
call = module.GradientCheckpointingLayer.__call__
def called(self, *args, **kwargs):
    if torch.is_grad_enabled() and not self.gradient_checkpointing and "RANK" in os.environ:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return call(self, *args, **kwargs)
module.GradientCheckpointingLayer.__call__ = called
"""


@pytest.mark.parametrize("start", ["warm", pytest.param("cold", marks=pytest.mark.long)])
def test_a_step_without_memory_is_tried_again_with_more_blocks_recomputed(
    user: User, start: str
) -> None:
    hooked(user.environ, user.folder, "transformers.modeling_layers", _FULL_WITHOUT)
    env = hooked(user.environ, user.folder, "launch.plan.ways", _ONE_BLOCK)
    settings = as_options("model.gradient_checkpointing=auto", f"launch.start={start}")
    out = user.output_of(*SHORT, *settings, env=env)
    assert re.findall(r"GiB\.: (restart.*) blocks of layers .* \(from the start: (.*)\)", out) == [
        ("restart 1 of 1 with 3", "--set model.gradient_checkpointing=3"),
        ("restart 2 of 2 with all", "--set model.gradient_checkpointing=true"),
    ]
    assert curve(user.run()).keys() == {1, 2, 3, 4}
