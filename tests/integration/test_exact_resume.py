"""A killed run that is resumed equals an uninterrupted one bit for bit, wherever it was killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rundir.paths import RunDir
from tests.running import (
    SHORT,
    Start,
    assert_nothing_left,
    ended,
    events_of,
    finish,
    hooked,
    run_folder,
    wait_for,
)

_TWENTY = (
    *SHORT,
    "--set",
    "train.max_steps=20",
    "--set",
    "train.checkpoint_every_steps=4",
    "--set",
    "train.eval_every_steps=6",
    "--set",
    "data.max_samples=64",
)
# What kills a rank, in the first attempt only: (module, what is done once it is imported).
_DIE = """
import signal
def die_if(is_now):
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and is_now:
        os.kill(os.getpid(), signal.SIGKILL)
"""
KILLS = {
    "step": (
        "train.step.loop",
        _DIE
        + """
inner = module.Trainer.gradients
def gradients(self, *args):
    die_if(self._step == 13 and self._ranks.rank == 1)
    return inner(self, *args)
module.Trainer.gradients = gradients
""",
    ),
    "save": (
        "train.step.checkpoint",
        _DIE
        + """
inner = module.save_file
def save_file(tensors, path):
    inner(tensors, path)
    die_if("step_00000012" in str(path))
module.save_file = save_file
""",
    ),
    "after save": (
        "train.step.checkpoint",
        _DIE
        + """
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
        _DIE
        + """
inner = module.Evaluator._losses
def losses(self):
    self.num = getattr(self, "num", 0) + 1
    die_if(self.num == 3 and self._ranks.rank == 0)
    return inner(self)
module.Evaluator._losses = losses
""",
    ),
}


def trained(
    airlock: Start, environ: dict[str, str], *options: str, **more: dict[str, str]
) -> RunDir:
    with ended(airlock(*_TWENTY, *options, **more)) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    return run_folder(environ)


def curve(run: RunDir) -> dict[int, set[float]]:
    """Return step → every loss reported for it, in any attempt."""
    found: dict[int, set[float]] = {}
    for event in events_of(run, "metric", "train"):
        found.setdefault(event["step"], set()).add(event["loss"])
    return found


@pytest.fixture(scope="module")
def once() -> dict[str, object]:
    """Return a cache for the results of the first test that asks."""
    return {}


@pytest.fixture
def clean(
    airlock: Start, environ: dict[str, str], tmp_path: Path, once: dict[str, object]
) -> dict[str, object]:
    """Return the results of a run that nobody killed."""
    if not once:
        env = {"AIRLOCK_RUNS_DIR": str(tmp_path / "clean")}
        run = trained(airlock, environ | env, env=env)
        once |= {"curve": curve(run), "weights": (run.model / "model.safetensors").read_bytes()}
    return once


@pytest.mark.parametrize(
    "where",
    [pytest.param(name, marks=[pytest.mark.long] * (name == "after save")) for name in KILLS],
)
def test_losses_and_weights_are_bitwise_those_of_a_run_that_was_not_killed(
    airlock: Start, environ: dict[str, str], tmp_path: Path, where: str, clean: dict[str, object]
) -> None:
    module, body = KILLS[where]
    env = hooked(environ, tmp_path, module, body)
    run = trained(airlock, environ, "--max-restarts", "1", env=env)
    assert [event["cause"] for event in events_of(run, "mark", "restart")] != []
    plans = events_of(run, "mark", "train.plan")
    assert [plan["attempt"] for plan in plans] == [0, 1]
    assert plans[1]["first_step"] == {"step": 12, "save": 8, "after save": 16, "eval": 12}[where]
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
    airlock: Start, environ: dict[str, str], tmp_path: Path, clean: dict[str, object]
) -> None:
    env = hooked(environ, tmp_path, "train.step.loop", _WAIT)
    with ended(airlock(*_TWENTY, env=env)) as process:
        killed = run_folder(environ)
        wait_for(lambda: 13 in curve(killed), why="the 13th step was not trained")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert_nothing_left(killed)
    with ended(airlock("run", "tiny", "--resume", killed.run_id)) as process:
        code, out, err = finish(process)
    assert code == 0, out + err
    resumed = run_folder(environ)
    assert resumed.path != killed.path
    (plan,) = events_of(resumed, "mark", "train.plan")
    assert plan["first_step"] == 12
    assert curve(killed) | curve(resumed) == clean["curve"]
    assert sorted(curve(resumed)) == list(range(13, 21))
    assert (resumed.model / "model.safetensors").read_bytes() == clean["weights"]


@pytest.mark.long
def test_batches_by_length_are_the_same_after_a_kill(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    by_length = ("--set", "data.packing=by_length")
    env = {"AIRLOCK_RUNS_DIR": str(tmp_path / "clean")}
    whole = trained(airlock, environ | env, *by_length, env=env)
    hook = hooked(environ, tmp_path, *KILLS["step"])
    run = trained(airlock, environ, *by_length, "--max-restarts", "1", env=hook)
    assert [plan["first_step"] for plan in events_of(run, "mark", "train.plan")] == [0, 12]
    assert curve(run) == curve(whole)
    files = [(one.model / "model.safetensors").read_bytes() for one in (run, whole)]
    assert files[0] == files[1]
