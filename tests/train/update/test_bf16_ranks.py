"""Real ranks with weights in bfloat16: copies and noise are the same however states are shared out.

The file is also the program that the tests start (see test_loop.py).
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rundir.checkpoints import complete_checkpoints
from rundir.control import ask
from rundir.prepared import Prepared
from tests.train.groups import new_run, run_program, start_ranks, told
from tests.train.step.test_loop import configured, curve, train_rank
from train.data.path_samples import prepare_file
from train.model.make_checkpoint import make_checkpoint

pytestmark = pytest.mark.runs  # starts groups of real ranks

WAYS: list[Any] = ["master", "stochastic"]


def main(folder: Path) -> None:
    """Train with states whole and shared out; stop two ranks, and go on with two and with one."""
    config = configured(folder)
    config = replace(
        config,
        model=replace(config.model, dtype="bfloat16"),
        train=replace(config.train, max_steps=4, eval_generate=False),
    )
    rows = [{"prompt": f"{i}", "response": "xyz" * (i % 4 + 1)} for i in range(11)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    Path(config.data.path).write_text(text, encoding="utf-8")
    make_checkpoint(config, folder / "model")
    data = prepare_file(Path(config.data.path), folder / "model", 0, 100)
    plain = Prepared(
        model_path=str(folder / "model"), train=data, evaluation=None, resume_from=None
    )
    for way in WAYS:
        whole = replace(config, train=replace(config.train, bf16_updates=way))
        shared = replace(whole, train=replace(whole.train, shard_optimizer=True))
        start_ranks(train_rank, new_run(folder, f"{way}-whole", whole, plain), 2)
        start_ranks(train_rank, new_run(folder, f"{way}-shared", shared, plain), 2)
        stopped = new_run(folder, f"{way}-stopped", shared, plain)
        ask(stopped, "stop")
        start_ranks(train_rank, stopped, 2)
        (checkpoint,) = complete_checkpoints(stopped.checkpoints)
        resumed = replace(plain, resume_from=str(checkpoint))
        for num in (1, 2):
            run = new_run(folder, f"{way}-resumed-{num}", shared, resumed)
            start_ranks(train_rank, run, num)
    unasked = new_run(folder, "auto", config, replace(plain, bf16_updates="stochastic"))
    start_ranks(train_rank, unasked, 2)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which every group of ranks has run."""
    return run_program(__file__, tmp_path_factory.mktemp("bf16"))


def weights(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(run / "model" / "model.safetensors")
    assert {one.dtype for one in found.values()} == {torch.bfloat16}
    return found


def assert_same(one: Path, other: Path) -> None:
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("way", WAYS)
def test_shared_out_or_whole_the_weights_are_the_same_to_the_last_bit(done: Path, way: str) -> None:
    assert curve(done / f"{way}-shared") == curve(done / f"{way}-whole")
    assert_same(done / f"{way}-shared", done / f"{way}-whole")


@pytest.mark.parametrize("way", WAYS)
def test_after_a_stop_they_are_the_same_to_the_last_bit(done: Path, way: str) -> None:
    assert_same(done / f"{way}-resumed-2", done / f"{way}-shared")
    assert told(done / f"{way}-resumed-1", "mark", "train.result")[0]["result"] == "done"
    alone, both = curve(done / f"{way}-resumed-1"), curve(done / f"{way}-resumed-2")
    for one, other in zip(alone, both, strict=True):
        assert one == pytest.approx(other, rel=0.02)


def test_ranks_do_what_the_launcher_has_chosen(done: Path) -> None:
    assert_same(done / "auto", done / "stochastic-whole")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
