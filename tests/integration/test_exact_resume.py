"""A killed run that is resumed equals an uninterrupted one bit for bit, wherever it was killed."""

from __future__ import annotations

import os
import signal

import pytest

from rundir.paths import RunDir
from tests.running import SHORT, User, as_options, assert_nothing_left, ended, events_of, wait_for

_TWENTY = (
    *SHORT,
    *as_options(
        "train.max_steps=20",
        "train.checkpoint_every_steps=4",
        "train.eval_every_steps=6",
        "data.max_samples=64",
    ),
)
# What kills a rank: (module, what is done once it is imported).
_KILLS = {
    "save": (
        "train.step.checkpoint",
        """
inner = module.save_file
def save_file(tensors, path):
    inner(tensors, path)
    die_if("step_00000012" in str(path))
module.save_file = save_file
""",
    ),
    "step": (
        "train.step.loop",
        """
inner = module.Trainer.gradients
def gradients(self, *args):
    die_if(self._step == 13 and self._ranks.rank == 1)
    return inner(self, *args)
module.Trainer.gradients = gradients
""",
    ),
    "after save": (
        "train.step.checkpoint",
        """
inner = module.save
def save(folder, step, *args, **options):
    found = inner(folder, step, *args, **options)
    die_if(step == 16)
    return found
module.save = save
""",
    ),
    "eval": (
        "train.evaluation.evaluator",
        """
inner = module.Evaluator._losses
def losses(self):
    die_if(self._ranks.pulse._step == 18 and self._ranks.rank == 0)
    return inner(self)
module.Evaluator._losses = losses
""",
    ),
}


def kill_at(where: str, attempt: int) -> tuple[str, str]:
    """Return what kills a rank there in that attempt: a module, and what follows its import."""
    module, body = _KILLS[where]
    die = f"""
import signal
def die_if(is_now):
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "{attempt}" and is_now:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    return module, die + body


def trained(user: User, *options: str, env: dict[str, str] | None = None) -> RunDir:
    user.output_of(*_TWENTY, *options, env=env)
    return user.run()


def curve(run: RunDir) -> dict[int, set[float]]:
    """Return step → every loss reported for it, in any attempt."""
    found: dict[int, set[float]] = {}
    for event in events_of(run, "metric", "train"):
        found.setdefault(event["step"], set()).add(event["loss"])
    return found


@pytest.fixture(scope="module")
def clean(user_of_all: User) -> dict[str, object]:
    """Return the results of a run that nobody killed."""
    run = trained(user_of_all)
    return {"curve": curve(run), "weights": (run.model / "model.safetensors").read_bytes()}


def test_losses_and_weights_are_bitwise_those_of_a_run_that_was_not_killed(
    user: User, clean: dict[str, object]
) -> None:
    for attempt, where in enumerate(_KILLS):
        env = user.hooked(*kill_at(where, attempt))
    soon = ("--max-restarts", "4", "--set", "launch.restart_backoff_s=0.1")
    run = trained(user, *soon, env=env)
    assert len(events_of(run, "mark", "restart")) == 4
    plans = events_of(run, "mark", "train.plan")
    assert [plan["first_step"] for plan in plans] == [0, 8, 12, 16, 16]
    assert curve(run) == clean["curve"]
    assert sorted(curve(run)) == list(range(1, 21))
    assert (run.model / "model.safetensors").read_bytes() == clean["weights"]


# In its 14th step rank 0 waits for ever, so that the launcher is killed at exactly that point.
_WAIT = """
import time
inner = module.Trainer.gradients
def gradients(self, *args):
    while self._step == 13 and self._ranks.is_first:
        time.sleep(1.0)
    return inner(self, *args)
module.Trainer.gradients = gradients
"""


@pytest.mark.sample
def test_a_run_whose_launcher_was_killed_is_resumed_by_hand_to_the_last_bit(
    user: User, clean: dict[str, object]
) -> None:
    env = user.hooked("train.step.loop", _WAIT)
    with ended(user.airlock(*_TWENTY, env=env)) as process:
        killed = user.run()
        wait_for(lambda: 13 in curve(killed), why="the 13th step was not trained")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert_nothing_left(killed)
    user.output_of("run", "tiny", "--resume", killed.run_id)
    resumed = user.run()
    assert resumed.path != killed.path
    (plan,) = events_of(resumed, "mark", "train.plan")
    assert plan["first_step"] == 12
    assert curve(killed) | curve(resumed) == clean["curve"]
    assert sorted(curve(resumed)) == list(range(13, 21))
    assert (resumed.model / "model.safetensors").read_bytes() == clean["weights"]
