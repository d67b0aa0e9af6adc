"""A run with its base in four bits: started, killed, resumed, exported; or lacking a package."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.integration.test_exact_resume import curve, kill_at
from tests.running import SHORT, User, as_options, events_of, how_started

QLORA = (
    *SHORT,
    *as_options(
        "train.method=qlora",
        "train.optimizer=adamw-8bit",
        "train.max_steps=5",
        "train.checkpoint_every_steps=2",
        "data.max_samples=64",
    ),
)


@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_run_in_four_bits_goes_on_after_a_kill_as_if_there_had_been_none(
    user: User, kill: bool, seen: dict[str, object]
) -> None:
    pytest.importorskip("bitsandbytes")
    module, body = kill_at("step", 0)
    env = user.hooked(module, body.replace("13", "3")) if kill else {}
    out = user.output_of(*QLORA, "--max-restarts", "1", env=env)
    run = user.run()
    assert how_started(run) == ("imports", None)
    assert len(events_of(run, "mark", "restart")) == kill
    plan = events_of(run, "mark", "train.plan")[0]
    assert plan["num_parameters"] - plan["num_trainable"] == 821_120  # in whatever format
    assert "merging has changed logits" in out
    weights = (run.model / "model.safetensors").read_bytes()
    seen |= {f"weights {kill}": weights, f"curve {kill}": curve(run)}
    if kill and "weights False" in seen:
        assert seen["weights True"] == seen["weights False"]
        assert seen["curve True"] == seen["curve False"]


@pytest.fixture(scope="module")
def seen() -> dict[str, object]:
    """Return the results of the run without a kill."""
    return {}


def test_a_package_that_is_missing_is_named_before_anything_starts(user: User) -> None:
    err = user.error_of(*SHORT, "--set", "model.attention=flash_attention_2", code=4)
    assert "needs the package flash-attn" in err
    assert f"{shlex.quote(sys.executable)} -m pip install" in err
    assert not (Path(user.environ["AIRLOCK_RUNS_DIR"]) / "latest").exists()


@pytest.mark.gpu
def test_on_a_gpu_the_zygote_of_a_run_in_four_bits_stays_away_from_cuda(user: User) -> None:
    pytest.importorskip("bitsandbytes")
    user.output_of(*QLORA, env={"NUM_GPUS": "1"})
    run = user.run()
    assert how_started(run) == ("imports", None)
    assert [mark["cuda_touched"] for mark in events_of(run, "mark", "zygote.ready")] == [False]
