"""The weights that get adapters: every matrix of a block, including experts, but no router."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from rundir.config import TrainConfig
from rundir.errors import ExitCode, UserError
from train.model.multimodal import in_towers, names_in_towers

# Model types whose kernels read these layers' weights directly, so peft refuses adapters on them.
_MAMBA = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
_READ_BY_KERNELS = ("out_proj", "conv1d")
_ROUTERS = ("gate", "router", "wg")  # the choice of experts for a token stays as it was learned
_EXPERT_DIMS = 3  # (experts, rows, columns)


def targets_of(model: Any, config: TrainConfig) -> tuple[list[str], list[str]]:
    """Return the targets: every matrix between embedding and head, or those in `lora_targets`.

    They are the ends of names, of layers and of parameters that are not layers.
    """
    converted = _names_peft_converts(model)
    is_simple = config.method == "lora" and not (config.lora_dropout or config.lora_dora)
    layers, parameters = [], []
    for name in _matrices(model):
        if name.rpartition(".")[2] not in converted:
            layers.append(name)
        elif is_simple:  # as a layer peft would mistake it for the experts of that name
            parameters.append(f"{name}.weight")
    if is_simple:
        parameters += _expert_stacks(model)
    chosen = _chosen(config.lora_targets, {*layers, *parameters})
    others = {name for name, _ in model.named_modules()} | set(names_in_towers(model))
    return (
        _short([name for name in layers if name in chosen], others - chosen, 1),
        _short([name for name in parameters if name in chosen], set(parameters) - chosen, 2),
    )


def _matrices(model: Any) -> Iterator[str]:
    """Yield the names of layers that are one matrix and may have adapters, except the head."""
    head, is_frozen = model.get_output_embeddings(), in_towers(model)
    for name, module in model.named_modules():
        if module is head or is_frozen(name):
            continue
        if _is_matrix(module) and _is_adaptable(model, name):
            yield name


def _is_matrix(module: nn.Module) -> bool:
    """Return whether a module is a matrix; some subclasses multiply in a way of their own."""
    if not isinstance(module, nn.Linear | Conv1D):
        return False
    usual = (nn.Linear.forward, Conv1D.forward)
    if type(module).forward in usual or hasattr(module.weight, "quant_state"):
        return True
    assert isinstance(module, nn.Linear)
    some = torch.ones((1, 2, module.in_features)).to(module.weight)
    try:
        with torch.no_grad():
            made = module(some)
    except (RuntimeError, ValueError):  # it expects another shape
        return False
    return isinstance(made, torch.Tensor) and made.shape == (1, 2, module.out_features)


def _is_adaptable(model: Any, name: str) -> bool:
    *path, leaf = name.split(".")
    if leaf in _ROUTERS or "router" in path:
        return False
    return not (model.config.model_type in _MAMBA and leaf in _READ_BY_KERNELS)


def _expert_stacks(model: Any) -> list[str]:
    is_frozen = in_towers(model)
    return [
        name
        for name, parameter in model.named_parameters()
        if not is_frozen(name)
        and parameter.dim() == _EXPERT_DIMS
        and parameter.is_floating_point()
        and "expert" in f"{name} {_class_of_owner(model, name)}".lower()
    ]


def _class_of_owner(model: Any, name: str) -> str:
    return type(model.get_submodule(name.rpartition(".")[0])).__name__


def _chosen(wanted: str, names: set[str]) -> set[str]:
    """Return names that end in one of `wanted`, which may have several parts; all if none is."""
    ends = {end.strip() for end in wanted.split(",") if end.strip()}
    if missing := {end for end in ends if not any(_has_end(name, {end}) for name in names)}:
        there = sorted({name.removesuffix(".weight").rpartition(".")[2] for name in names})
        raise UserError(
            f"train.lora_targets: no layer of this model ends in {min(missing)!r}; there are "
            f"{', '.join(there)}",
            do=f"--set train.lora_targets={','.join(there[:2])}",
            code=ExitCode.PREFLIGHT,
        )
    return {name for name in names if not ends or _has_end(name, ends)}


def _has_end(name: str, ends: set[str]) -> bool:
    return any(f".{name.removesuffix('.weight')}".endswith(f".{end}") for end in ends)


def _short(names: Iterable[str], others: Iterable[str], num_parts: int) -> list[str]:
    """Return the last parts of names, or the whole name if one of `others` ends in them too."""

    def end(name: str) -> str:
        is_weight = num_parts > 1 and name.endswith(".weight")
        return ".".join(name.split(".")[-num_parts - is_weight :])

    taken = {end(name) for name in others}
    return sorted({name if end(name) in taken else end(name) for name in names})


def _names_peft_converts(model: Any) -> frozenset[str]:
    """Return the names of layers that peft takes for experts.

    In models whose experts were layers in transformers 4 it does so wherever they are, so shared
    experts and dense layers would get no adapters.
    """
    try:
        conversion: Any = import_module("peft.utils.transformers_weight_conversion")
        kind = conversion._MODEL_TO_CONVERSION_PATTERN.get(model.config.model_type)
        return frozenset(conversion._MOE_TARGET_MODULE_MAPPING.get(kind, ()))
    except (ImportError, AttributeError):  # another version of peft does this differently
        return frozenset()
