"""The end of a run's report: which weights were exported, and what can be typed about them next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rundir.config_file import read_config
from rundir.paths import RunDir, shown
from rundir.prepared import read_prepared
from rundir.units import loss_text
from state.run_state import RunState


def exported_rows(choice: dict[str, Any], run_id: str) -> list[tuple[str, str]]:
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


def next_rows(run: RunDir, state: RunState) -> Iterator[tuple[str, str]]:
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
    yield from serving(run)
    yield "upload", f"./airlock push {name} OWNER/NAME"


def serving(run: RunDir) -> Iterator[tuple[str, str]]:
    """Yield the commands of other programs that serve the model, each with its name."""
    if run.model.is_dir():
        model = shlex.quote(shown(run.model))
        yield "transformers", f"transformers serve {model}"
        yield "vLLM", f"vllm serve {model}"
        yield "llama.cpp", f"python convert_hf_to_gguf.py {model} --outfile model.gguf"
        return
    adapter, base = shlex.quote(shown(run.adapter)), shlex.quote(base_of(run))
    named = "--base" if Path(base_of(run)).is_dir() else "--base-model-id"
    yield "vLLM", f"vllm serve {base} --enable-lora --lora-modules trained={adapter}"
    yield "llama.cpp", f"python convert_lora_to_gguf.py {adapter} {named} {base}"


def base_of(run: RunDir) -> str:
    """Return the Hugging Face id, or the folder, of the model that was trained."""
    return read_config(run.config).model.path or read_prepared(run).model_path
