"""Which weights become the model: those of the best checkpoint, as the report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rundir.checkpoints import best_checkpoint, checkpoint_name, step_of
from rundir.paths import RunDir
from tests.running import SHORT, User, as_options, events_of

# What is trained contradicts what is held out, so the first steps are the best ones.
_OPPOSED = (
    *SHORT,
    *as_options(
        "train.max_steps=6",
        "train.learning_rate=0.01",
        "train.warmup_steps=0",
        "train.schedule=constant",
    ),
    *as_options("train.checkpoint_every_steps=2", "train.eval_every_steps=2"),
)


def opposed(folder: Path) -> tuple[str, ...]:
    """Write data of which the training half teaches the opposite of the held-out half."""
    for name, answer in (("train", "a" * 20), ("held", "z" * 20)):
        rows = [json.dumps({"prompt": f"p{i}", "response": answer}) for i in range(48)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return ("--data", f"{folder}/train.jsonl", "--set", f"data.eval_path={folder}/held.jsonl")


def weights_of(run: RunDir, step: int) -> dict[str, Any]:
    file = run.checkpoints / checkpoint_name(step) / "model.safetensors"
    return {key.removeprefix("model."): one for key, one in load_file(file).items()}


def assert_exported(run: RunDir, saved: dict[str, Any]) -> None:
    """Fail unless the model of a run has these weights."""
    exported = load_file(run.model / "model.safetensors")
    assert all((exported[key] == saved[key]).all() for key in exported)


def test_adapters_whose_held_out_loss_gets_worse_are_trained_no_further_and_the_best_are_exported(
    user: User,
) -> None:
    soon = ("train.early_stop_evaluations=2", "train.max_steps=60", "train.method=lora")
    every = as_options("train.eval_every_steps=1", "train.checkpoint_every_steps=0", *soon)
    out = user.output_of(*_OPPOSED, *opposed(user.folder), *every)
    run = user.run()
    (early,) = events_of(run, "mark", "early_stop")
    step, last = early["best_step"], early["step"]
    losses = {event["step"]: event["loss"] for event in events_of(run, "metric", "eval")}
    assert max(losses) == last == step + 2 < 60
    assert early["best_loss"] == min(loss for at, loss in losses.items() if at)
    assert f"after step {last}: the held-out loss has not improved for 2" in out
    assert f"step {step}, the best by held-out loss, {losses[step]:.4f}" in out
    assert f"the last, step {last}, has {losses[last]:.4f}" in out
    (choice,) = events_of(run, "mark", "export.choice")
    assert (choice["step"], choice["last_step"], choice["is_best"]) == (step, last, True)
    exported = load_file(run.adapter / "adapter_model.safetensors")
    saved = {key.replace(".default.", "."): one for key, one in weights_of(run, step).items()}
    assert exported.keys() == saved.keys()
    assert all((exported[key] == saved[key]).all() for key in exported)


@pytest.mark.long
def test_a_run_that_goes_on_exports_the_best_of_both_and_the_last_if_asked(user: User) -> None:
    user.output_of(*_OPPOSED, *opposed(user.folder))
    first = user.run()
    best = best_checkpoint(first.checkpoints)
    assert best is not None
    assert step_of(best) < 6
    saved = weights_of(first, step_of(best))
    assert_exported(first, saved)
    again = ("run", "tiny", "--resume", str(first.path), "--set", "train.max_steps=8")
    out = user.output_of(*again)
    assert f"of run {first.run_id}, the best by held-out loss" in out
    assert_exported(user.run(), saved)
    out = user.output_of(*again, "--set", "train.export=last")
    assert "step 8, the last: held-out loss" in out
    assert_exported(user.run(), weights_of(user.run(), 8))
