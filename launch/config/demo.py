"""`--demo`: a few steps on a small data set that comes with the clone, whatever the profile.

What an option or the environment sets stays as it is. A model that does not fit is cut down to two
layers of its shape, with random weights; whether it fits, launch/plan/demo_that_fits.py finds out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launch.files.model_folder import fetched_model_folder
from rundir.config import RunConfig, Sources
from rundir.paths import ROOT

DEMO = "option --demo"
DEMO_DATA = "examples/tiny/train.jsonl"
NUM_STEPS = 5
NUM_LAYERS = 2
_NUM_SAMPLES = 8  # a step, over all ranks
_MOST_TOKENS = 128  # the data's longest row has half of that, even by a byte tokenizer
# In a model's config.json: what does not belong to its shape.
_NOT_SHAPE = ("architectures", "auto_map", "dtype", "torch_dtype", "quantization_config")


def with_demo(config: RunConfig, sources: Sources) -> tuple[RunConfig, Sources]:
    """Return the configuration of the demo of a profile, and the sources of its values."""
    wanted = short_training(config, _NUM_SAMPLES, NUM_STEPS, warmup_steps=1)
    wanted["train.merge_adapters"] = False
    if config.launch.needs_gpu:  # else the demo changes nothing there
        wanted["launch.needs_gpu"] = False
    if not _is_the_users(sources["data.path"]):
        wanted |= {
            "data.path": str(ROOT / DEMO_DATA),
            "data.eval_path": "",
            "data.eval_fraction": 0.0,
            "data.columns": "",
            "data.only_where": "",
            "data.streaming": False,
            "data.max_seq_length": min(config.data.max_seq_length, _MOST_TOKENS),
        }
    kept = {key: value for key, value in wanted.items() if not _is_the_users(sources[key])}
    return _changed(config, kept), sources | dict.fromkeys(kept, DEMO)


def short_training(
    config: RunConfig, batch_size: int, num_steps: int, warmup_steps: int
) -> dict[str, Any]:
    """Return the settings of a training of few steps that evaluates and keeps nothing."""
    return {
        "train.max_steps": num_steps,
        "train.global_batch_size": min(config.train.global_batch_size, batch_size),
        "train.warmup_steps": warmup_steps,
        "train.log_every_steps": 1,
        "train.eval_every_steps": 0,
        "train.eval_generate": False,
        "train.evolution_prompts": 0,  # generating answers would take longer than the steps
        "train.checkpoint_every_steps": 0,
        "train.report_to": "",
    }


def cut_down(config: RunConfig, sources: Sources) -> tuple[RunConfig, Sources] | None:
    """Return the demo with a model of two layers of the same shape, its weights random.

    None if the model is not larger than that, or its shape is not known here.
    """
    shape = _shape(config)
    num_layers = _text(shape).get("num_hidden_layers")
    if "model_type" not in shape or not isinstance(num_layers, int) or num_layers <= NUM_LAYERS:
        return None
    small = {key: value for key, value in shape.items() if key not in _NOT_SHAPE}
    if "text_config" in small:  # multimodal; the towers are not loaded
        small["text_config"] = _shortened(small["text_config"], num_layers)
    else:
        small = _shortened(small, num_layers)
    start = "imports" if config.launch.start == "warm" else config.launch.start
    wanted = {
        "model.path": "",
        "model.revision": "",
        "train.adapter": "",
        "launch.load": "random",
        "launch.start": start,
    }
    why = f"{DEMO}: {NUM_LAYERS} of {num_layers} layers, random weights"
    config = replace(_changed(config, wanted), architecture=small)
    return config, sources | dict.fromkeys(wanted, why)


def num_layers_of(config: RunConfig) -> int:
    """Return the number of layers of the whole model; `cut_down` has found it."""
    return int(_text(_shape(config))["num_hidden_layers"])


def _text(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the shape of a multimodal model's text part; a text model's own."""
    config: Mapping[str, Any] = shape.get("text_config", shape)
    return config


def _shortened(shape: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    small = dict(shape)
    for key, value in small.items():
        if isinstance(value, list) and len(value) == num_layers:  # one entry for each layer
            small[key] = value[:NUM_LAYERS]
    return small | {"num_hidden_layers": NUM_LAYERS}


def _shape(config: RunConfig) -> Mapping[str, Any]:
    """Return [architecture], or else what the model's config.json says; empty if it is unknown."""
    if config.architecture:
        return config.architecture
    folder = fetched_model_folder(config)
    if folder is None:
        return {}
    shape: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return shape


def _is_the_users(source: str) -> bool:
    return source.startswith(("option", "environment"))


def _changed(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    for key, value in values.items():
        section, _, name = key.partition(".")
        config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config
