"""Which weights become the model: those of the best checkpoint, as the report says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rundir.checkpoints import best_checkpoint, checkpoint_name
from rundir.paths import RunDir
from tests.running import SHORT, Start, events_of, finish, run_folder

# What is trained contradicts what is held out, so the first steps are the best ones.
_OPPOSED = (
    *SHORT,
    *("--set", "train.max_steps=6", "--set", "train.learning_rate=0.01"),
    *("--set", "train.warmup_steps=0", "--set", "train.schedule=constant"),
    *("--set", "train.checkpoint_every_steps=2", "--set", "train.eval_every_steps=2"),
)


def opposed(folder: Path) -> tuple[str, ...]:
    """Write data of which the training half teaches the opposite of the held-out half."""
    for name, answer in (("train", "a" * 20), ("held", "z" * 20)):
        rows = [json.dumps({"prompt": f"p{i}", "response": answer}) for i in range(48)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return ("--data", f"{folder}/train.jsonl", "--set", f"data.eval_path={folder}/held.jsonl")


def ended_well(airlock: Start, *args: str) -> str:
    code, out, err = finish(airlock(*args))
    assert code == 0, out + err
    return out


def weights_of(run: RunDir, step: int) -> dict[str, Any]:
    file = run.checkpoints / checkpoint_name(step) / "model.safetensors"
    return {key.removeprefix("model."): one for key, one in load_file(file).items()}


@pytest.mark.parametrize("method", [pytest.param("full", marks=pytest.mark.long), "lora"])
def test_the_best_checkpoint_is_exported_and_the_report_says_so(
    airlock: Start, environ: dict[str, str], tmp_path: Path, method: str
) -> None:
    out = ended_well(airlock, *_OPPOSED, *opposed(tmp_path), "--set", f"train.method={method}")
    run = run_folder(environ)
    best = best_checkpoint(run.checkpoints)
    assert best is not None
    losses = {event["step"]: event["loss"] for event in events_of(run, "metric", "eval")}
    step = int(best.name.removeprefix("step_"))
    assert step < 6
    assert losses[step] == min(loss for at, loss in losses.items() if at)
    assert f"step {step}, the best by held-out loss, {losses[step]:.4f}" in out
    assert f"the last, step 6, has {losses[6]:.4f}" in out
    (choice,) = events_of(run, "mark", "export.choice")
    assert (choice["step"], choice["last_step"], choice["is_best"]) == (step, 6, True)
    saved = weights_of(run, step)
    if method == "full":
        exported = load_file(run.model / "model.safetensors")
        assert all((exported[key] == saved[key]).all() for key in exported)
    else:
        exported = load_file(run.adapter / "adapter_model.safetensors")
        plain = {key.replace(".default.", "."): one for key, one in saved.items()}
        assert exported.keys() == plain.keys()
        assert all((exported[key] == plain[key]).all() for key in exported)


def test_a_run_whose_held_out_loss_gets_worse_stops_early_and_exports_the_best(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    soon = ("--set", "train.early_stop_evaluations=2", "--set", "train.max_steps=60")
    every = ("--set", "train.eval_every_steps=1", "--set", "train.checkpoint_every_steps=0")
    out = ended_well(airlock, *_OPPOSED, *opposed(tmp_path), *soon, *every)
    run = run_folder(environ)
    (early,) = events_of(run, "mark", "early_stop")
    losses = {event["step"]: event["loss"] for event in events_of(run, "metric", "eval")}
    assert max(losses) == early["step"] == early["best_step"] + 2 < 60
    assert early["best_loss"] == min(loss for at, loss in losses.items() if at)
    assert f"after step {early['step']}: the held-out loss has not improved for 2" in out
    assert f"step {early['best_step']}, the best by held-out loss" in out
    exported, saved = (
        load_file(run.model / "model.safetensors"),
        weights_of(run, early["best_step"]),
    )
    assert all((exported[key] == saved[key]).all() for key in exported)


@pytest.mark.long
def test_a_run_that_goes_on_exports_the_best_of_both_and_the_last_if_asked(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    ended_well(airlock, *_OPPOSED, *opposed(tmp_path))
    first = run_folder(environ)
    again = ("run", "tiny", "--resume", str(first.path), "--set", "train.max_steps=8")
    out = ended_well(airlock, *again)
    second, best = run_folder(environ), best_checkpoint(first.checkpoints)
    assert best is not None
    assert f"of run {first.run_id}, the best by held-out loss" in out
    exported, saved = (
        load_file(second.model / "model.safetensors"),
        weights_of(first, int(best.name.removeprefix("step_"))),
    )
    assert all((exported[key] == saved[key]).all() for key in exported)
    out = ended_well(airlock, *again, "--set", "train.export=last")
    third = run_folder(environ)
    assert "step 8, the last: held-out loss" in out
    last, exported = weights_of(third, 8), load_file(third.model / "model.safetensors")
    assert all((exported[key] == last[key]).all() for key in exported)


def test_without_held_out_data_the_last_is_exported(airlock: Start) -> None:
    out = ended_well(airlock, *SHORT, "--set", "data.eval_path=")
    assert "exported      step 4, the last: no held-out loss was measured" in out
