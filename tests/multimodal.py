"""Small random multimodal checkpoints, like downloaded ones, and what tests ask of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig

from benchmarks.architectures.small_models import enlarge, small_multimodal
from train.model.export_towers import tensors_of
from train.model.make_checkpoint import byte_tokenizer
from train.model.multimodal import class_for, in_towers

MOST_COMMON = ("gemma3", "qwen3_vl", "mistral3", "qwen3_5")
OTHERS = (
    "qwen3_5_moe",
    "gemma4",
    "gemma4_unified",
    "llama4",
    "internvl",
    "qwen3_vl_moe",
    "llava",
    "llava_next",
    "llava_onevision",
    "idefics3",
    "smolvlm",
    "aya_vision",
    "cohere2_vision",
    "lfm2_vl",
    "kimi_k25",
    "mllama",
    "ovis2",
    "muse_glimmer",
    "minimax_m3_vl",
    "deepseek_vl",
    "exaone4_5",
    "minicpmv4_7",
    "qwen4_exp",
)
# Checkpoints of a class with other parts than its configuration has by itself.
COMBINED: dict[str, dict[str, str]] = {
    "ministral3": {"kind": "mistral3", "text_config": "ministral3"},
    "pixtral": {"kind": "llava", "text_config": "mistral", "vision_config": "pixtral"},
}
PROCESSOR = "preprocessor_config.json"


def small(name: str) -> PretrainedConfig:
    """Return a small configuration of that kind, or of one in `COMBINED`."""
    return small_multimodal(**COMBINED.get(name, {"kind": name}))


def multimodal_folder(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Make a small random checkpoint, like a downloaded one."""
    tokenizer: Any = byte_tokenizer()  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    described = small(name)
    text = described.get_text_config()
    text.pad_token_id, text.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    torch.manual_seed(0)
    enlarge(class_for(described)._from_config(described, dtype=dtype)).save_pretrained(folder)
    (folder / PROCESSOR).write_text(json.dumps({"image_processor_type": name}))
    return folder


def contents(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors in a folder."""
    found = {}
    for name, file in tensors_of(folder).items():
        with safe_open(file, "pt") as opened:
            found[name] = opened.get_tensor(name)
    return found


def class_named(folder: Path) -> tuple[str, list[str]]:
    """Return (model_type, architectures) of a config.json."""
    config = json.loads((folder / "config.json").read_text())
    return config["model_type"], config["architectures"]


def logits_of(model: Any) -> torch.Tensor:
    """Return the logits of a few tokens."""
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(5, 21)[None], use_cache=False).logits
    return found


def whole_model(folder: Path) -> Any:
    """Load a folder as a user would, in float32; each weight has to be in its files."""
    load: Any = AutoModelForImageTextToText.from_pretrained
    model, info = load(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"], info["missing_keys"]
    assert not info["mismatched_keys"], info["mismatched_keys"]
    return model


def summed_loss(whole: Any, ids: Sequence[int], num_prompt: int) -> float:
    """Return the loss of a sample's answer, summed, as the class alone computes it."""
    tokens = torch.tensor([list(ids)])
    with torch.no_grad():
        logits = whole(input_ids=tokens, use_cache=False).logits[0, num_prompt - 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits, tokens[0, num_prompt:], reduction="sum"))


def assert_exported_as_it_came(base: Path, folder: Path) -> Any:
    """Fail unless `folder` has the layout of `base`, its towers bit for bit, and loads.

    Returns the model, loaded by its whole class.
    """
    before, after = contents(base), contents(folder)
    assert before.keys() == after.keys()
    whole, again = whole_model(base), whole_model(folder)
    is_frozen = in_towers(whole)
    towers = [name for name, _ in whole.named_parameters() if is_frozen(name)]
    assert towers, "nothing was left out"
    for name in towers:
        assert torch.equal(again.get_parameter(name), whole.get_parameter(name)), name
    assert not torch.equal(logits_of(again), logits_of(whole)), "nothing was trained"
    assert class_named(folder) == class_named(base)
    assert (folder / PROCESSOR).read_bytes() == (base / PROCESSOR).read_bytes()
    if of_text := text_class(again.config):
        load: Any = AutoModelForCausalLM.from_pretrained
        alone, info = load(folder, dtype=torch.float32, output_loading_info=True)
        assert type(alone).__name__ == of_text
        assert not info["missing_keys"], info["missing_keys"]
        assert torch.equal(logits_of(alone), logits_of(again))
    return again


def text_class(described: PretrainedConfig) -> str | None:
    """Return the name of the class that loads such a checkpoint for text; None if it has none."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    if type(described) not in mapping:
        return None
    found: str = mapping[type(described)].__name__
    return found
