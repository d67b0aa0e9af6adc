"""Real runs of multimodal checkpoints: the losses of their own class, and exports in its layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from rundir.paths import RunDir
from tests.multimodal import (
    assert_exported_as_it_came,
    logits_of,
    multimodal_folder,
    summed_loss,
    whole_model,
)
from tests.running import SHORT, User, events_of

# Of peft: it reads a name that transformers renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")

HYBRIDS = ("qwen3_5", "qwen3_5_moe")


class Cell(NamedTuple):
    """A run: which checkpoint, and how it is trained."""

    kind: str
    method: str
    num_ranks: int


SHORT_CELLS = (Cell("qwen3_5", "lora", 2),)
# Other kinds, which tests/train/model/test_multimodal.py does not have, do not pack, or are MoE.
LONG_CELLS = (
    Cell("gemma3", "full", 2),
    Cell("mistral3", "lora", 1),
    Cell("qwen3_5_moe", "full", 2),
    Cell("ministral3", "lora", 2),
    Cell("pixtral", "full", 1),
    Cell("qwen2_5_vl", "lora", 1),
    Cell("qwen2_5_vl", "full", 2),
    Cell("glm4v", "lora", 2),
)
# As many as a step takes, so that the first step's loss is that of all.
ROWS = [
    {"prompt": "last coyavi", "response": "i"},
    {"prompt": "upper feyer", "response": "FEYER"},
    {"prompt": "say it three times", "response": "it, it and it"},
    {"prompt": "no", "response": "yes"},
    {"prompt": "what is it?", "response": "what it is"},
    {"prompt": "first fixi of all", "response": "f"},
    {"prompt": "a", "response": "a rather long answer to a letter"},
    {"prompt": "upper mu", "response": "MU"},
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "cell",
    [*SHORT_CELLS, *(pytest.param(cell, marks=pytest.mark.long) for cell in LONG_CELLS)],
    ids=lambda cell: "-".join(map(str, cell)),
)
def test_its_loss_is_its_classes_and_it_is_exported_as_it_came(user: User, cell: Cell) -> None:
    base = multimodal_folder(cell.kind, user.folder / "base")
    run = trained(user, cell, base)
    first, second = events_of(run, "metric", "train", rank=0)
    assert (first["step"], second["step"]) == (1, 2)
    assert first["loss"] == pytest.approx(class_loss(base), rel=1e-6)
    is_helped = any("PACKING: samples share rows, and" in line for line in said(run))
    assert is_helped == (cell.kind in HYBRIDS), said(run)

    exported = assert_exported_as_it_came(base, run.model)
    if cell.method == "lora":
        assert_adapters_fit(base, run.adapter, exported)


def trained(user: User, cell: Cell, base: Path) -> RunDir:
    data = user.folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    settings = {
        "model.path": base,
        "model.dtype": "float32",
        "data.eval_path": "",
        "train.method": cell.method,
        "train.max_steps": 2,
        "train.global_batch_size": len(ROWS),
        "train.lora_rank": 4,
        "train.warmup_steps": 0,
    }
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    ranks = ("--num-gpus", str(cell.num_ranks))
    user.output_of(*SHORT, *ranks, "--data", str(data), *options, timeout_s=580)
    return user.run()


def said(run: RunDir) -> list[str]:
    return [event["text"] for event in events_of(run, "log", "line")]


def class_loss(base: Path) -> float:
    """Return the mean loss of all answers' tokens, as the class alone computes it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    whole, total, num = whole_model(base).train(), 0.0, 0
    for row in ROWS:
        prompt = [{"role": "user", "content": row["prompt"]}]
        answer = [{"role": "assistant", "content": row["response"]}]
        template = tokenizer.apply_chat_template
        question = template(prompt, add_generation_prompt=True, return_dict=False)
        ids = template(prompt + answer, return_dict=False)
        assert ids[: len(question)] == question
        total += summed_loss(whole, ids, len(question))
        num += len(ids) - len(question)
    return total / num


def assert_adapters_fit(base: Path, adapter: Path, exported: Any) -> None:
    """Fail unless peft puts them onto the whole original, which then computes as the export."""
    from peft import PeftModel

    stored = load_file(adapter / "adapter_model.safetensors")
    names = {name.removeprefix("base_model.model.") for name in stored}
    adapted = PeftModel.from_pretrained(whole_model(base), adapter)
    modules = {name for name, _ in adapted.get_base_model().named_modules()}
    assert names
    assert {name.rpartition(".lora_")[0] for name in names} <= modules
    assert torch.allclose(logits_of(adapted), logits_of(exported), atol=1e-3)
