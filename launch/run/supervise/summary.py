"""The summary of a run that is done: rows of figures, then what can be typed about its model."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.run.supervise.event_lines import early_stop_line, speed
from rundir.config_file import read_config
from rundir.paths import RunDir, shown
from rundir.prepared import read_prepared
from rundir.units import MIB, clock_text, loss_text
from state.gpu_use import over_the_run
from state.run_state import RunState

_NUM_ANSWERS = 3
_MOST_STEPS = 5
_ANSWERS = {
    "warn": "said, and trained on",
    "skip": "left out: they have changed no weight",
    "rollback": "gone back from, and left out",
}


def summary_lines(run: RunDir, state: RunState) -> list[str]:
    """Return what a run that is done has reached, and what can be typed about its model."""
    status = state.status
    elapsed = clock_text(time.monotonic() - state.started_mono)
    rows = []
    if state.first_loss is not None and status.loss is not None:
        since = "" if status.loss == state.first_loss else f"{state.first_loss:.4f} → "
        rows.append(("loss", f"{since}{status.loss:.4f} in {status.step} steps"))
    rows += [*_evaluation_rows(run, state), *_loss_rows(run, state)]
    rows += _exported_rows(state.export, state.status.run_id)
    tokens_per_s = state.result.get("tokens_per_s")
    if tokens_per_s:
        rows.append(("speed", speed(tokens_per_s, state.result["mfu"])))
    rows.append(("host memory", f"peak {state.peak_pss_bytes // MIB:,} MiB, all processes"))
    if state.gpus:
        rows.append(("GPUs", over_the_run(state.gpus.values())))
    if slow := state.stragglers.over_the_run():
        rows.append(("slow rank", slow))
    rows += [(folder.name, shown(folder)) for folder in (run.adapter, run.model) if folder.is_dir()]
    rows += _next_rows(run, state)
    done = f"\n{status.profile}: done in {elapsed}"
    return [done, *(f"  {name:<13} {text}" for name, text in rows)]


def _evaluation_rows(run: RunDir, state: RunState) -> list[tuple[str, str]]:
    if not state.evals:
        return []
    before, after = state.evals[0], state.evals[-1]
    rows = [("held-out loss", f"{loss_text(before['loss'])} → {loss_text(after['loss'])}")]
    if after["exact_match"] is None:
        return rows
    num = state.plan["num_eval_samples"]
    figures = f"{before['exact_match']:.1%} → {after['exact_match']:.1%} of {num} held-out prompts"
    rows.append(("exact match", figures))
    for answer in _sample_answers(run):
        mark = "right" if answer["exact_match"] else f"wrong, {answer['expected_output']}"
        rows.append(("answer", f"{answer['input']}  →  {answer['model_output']}   ({mark})"))
    return rows


def _sample_answers(run: RunDir) -> list[dict[str, Any]]:
    """Return three answers of the last snapshot: a wrong one first, if there is one."""
    snapshots = sorted((run.path / "evolution").glob("*/step_*.json"), key=lambda path: path.name)
    if not snapshots:
        return []
    examples = json.loads(snapshots[-1].read_text(encoding="utf-8"))["examples"]
    wrong = [example for example in examples if not example["exact_match"]][:1]
    right = [example for example in examples if example["exact_match"]]
    # Far apart in the file, so that not all three are of the same kind.
    spread = right[:: max(1, len(right) // _NUM_ANSWERS)]
    return (wrong + spread)[:_NUM_ANSWERS]


def _loss_rows(run: RunDir, state: RunState) -> Iterator[tuple[str, str]]:
    """Yield what is notable about losses: bad ones, an early end, evaluation that is off."""
    for answer, done in _ANSWERS.items():
        steps = [str(loss["step"]) for loss in state.bad_losses if loss["answer"] == answer]
        if steps:
            more = f" and {len(steps) - _MOST_STEPS} more" if len(steps) > _MOST_STEPS else ""
            yield "bad losses", f"step {', '.join(steps[:_MOST_STEPS])}{more}: {done}"
    if state.early_stop:
        yield "stopped early", early_stop_line(state.early_stop).partition(": ")[2]
    for name, (first, last) in state.sets.items():
        match_ = last["exact_match"]
        exact = "" if match_ is None else f", exact match {match_:.1%}"
        yield name, f"loss {loss_text(first['loss'])} → {loss_text(last['loss'])}{exact}"
    if not _evaluates(run):
        yield "held-out loss", "not measured: train.evaluate is false"


def _evaluates(run: RunDir) -> bool:
    try:
        config = read_config(run.config)
    except (OSError, ValueError):
        return True
    return config.script is not None or config.train.evaluate


def _exported_rows(choice: dict[str, Any], run_id: str) -> list[tuple[str, str]]:
    """Return the row that says which checkpoint became the model, and why."""
    if not choice:
        return []
    step, loss, last = choice["step"], choice["loss"], choice["last_step"]
    if loss is None:
        return [("exported", f"step {step}, the last: no held-out loss was measured")]
    if step == last and choice["of_run"] == run_id:
        kept = f" of {choice['num_evaluated']} kept" if choice["num_evaluated"] > 1 else ""
        which = f"the last and the best{kept}" if choice["is_best"] else "the last"
        return [("exported", f"step {step}, {which}: held-out loss {loss_text(loss)}")]
    where = "" if choice["of_run"] == run_id else f" of run {choice['of_run']}"
    after = choice["last_loss"]
    then = "" if after is None else f"; the last, step {last}, has {after:.4f}"
    text = f"step {step}{where}, the best by held-out loss, {loss_text(loss)}{then}"
    return [("exported", f"{text}; --set train.export=last exports that")]


def _next_rows(run: RunDir, state: RunState) -> Iterator[tuple[str, str]]:
    """Yield what to type to try, serve and upload the exported model; nothing without one.

    Nor for adapters of random weights: no file has the weights that they belong to.
    """
    has_model = run.model.is_dir()
    if state.of_script or not (has_model or run.adapter.is_dir()):
        return
    if not has_model and read_prepared(run).loading.load == "random":
        return
    name = shlex.quote(shown(run.path))
    yield "try it", f"./airlock try {name}"
    yield from _serving_rows(run)
    yield "upload", f"./airlock push {name} OWNER/NAME"


def _serving_rows(run: RunDir) -> Iterator[tuple[str, str]]:
    """Yield the commands of other programs that serve the model, each with its name."""
    if run.model.is_dir():
        model = shlex.quote(shown(run.model))
        yield "transformers", f"transformers serve {model}"
        yield "vLLM", f"vllm serve {model}"
        yield "llama.cpp", f"python convert_hf_to_gguf.py {model} --outfile model.gguf"
        return
    adapter, base = shlex.quote(shown(run.adapter)), shlex.quote(_base_of(run))
    named = "--base" if Path(_base_of(run)).is_dir() else "--base-model-id"
    yield "vLLM", f"vllm serve {base} --enable-lora --lora-modules trained={adapter}"
    yield "llama.cpp", f"python convert_lora_to_gguf.py {adapter} {named} {base}"


def _base_of(run: RunDir) -> str:
    """Return the Hugging Face id, or the folder, of the model that was trained."""
    return read_config(run.config).model.path or read_prepared(run).model_path
