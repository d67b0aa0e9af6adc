"""Blocks of layers whose activations are computed again in the backward pass, and not kept."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from rundir.config import RunConfig

_RANDOM = ("drop", "jitter", "noise")  # in the names of a model's settings


def recompute_blocks(model: Any, config: RunConfig) -> None:
    """Have blocks of a model as transformers made it recomputed (Chen et al. 2016).

    If `model.gradient_checkpointing` is a number, it is the first so many. Where nothing in them is
    random, the state of the random numbers is not kept for each of them.
    """
    options = {"use_reentrant": False, "preserve_rng_state": _may_be_random(model, config)}
    # transformers 5.23 renamed this method; earlier versions only have the old name.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)(options)
    asked = config.model.gradient_checkpointing
    if type(asked) is int:  # and no bool
        for block in recomputed_blocks(model)[asked:]:
            block.gradient_checkpointing = False


def recomputed_blocks(model: nn.Module) -> list[Any]:
    """Return the blocks of a model whose activations are computed again, in order."""
    return [module for module in blocks_of(model) if module.gradient_checkpointing]


def blocks_of(model: nn.Module) -> list[Any]:
    """Return the blocks of a model that could be."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _may_be_random(model: Any, config: RunConfig) -> bool:
    """Return whether a forward pass may draw random numbers.

    Adapters that exist have a dropout of their own, and code from elsewhere any.
    """
    train = config.train
    if config.model.trust_remote_code:
        return True
    if train.method != "full" and (train.lora_dropout > 0 or train.adapter):
        return True
    drops = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    return drops or _is_random("", model.config.to_dict())


def _is_random(name: Any, value: Any) -> bool:
    """Return whether a setting, or one below it, turns something random on."""
    if isinstance(value, dict):
        return any(_is_random(*item) for item in value.items())
    if value is None or not any(part in str(name) for part in _RANDOM):
        return False
    return not isinstance(value, int | float) or value > 0
