"""LoRA: which weights get adapters, and a model with them (Hu et al. 2022).

Experts are stacks of matrices that are no layers of their own. peft adapts such a parameter by
adding the product of its adapters to a copy of it, in each forward and in the parameter's type.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from rundir.config import TrainConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from train.new_tokens import end_names
from train.quantize import weights_in, without_bitsandbytes

# Kinds whose kernels read these layers' weights themselves, so peft refuses adapters on them.
_MAMBA = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
_READ_BY_KERNELS = ("out_proj", "conv1d")
_ROUTERS = ("gate", "router", "wg")  # which expert a token goes to is left as it was learnt
_MATRIX_DIMS, _EXPERT_DIMS = 2, 3  # (experts, rows, columns)
_WELL_COVERED = 0.995
_MAX_NAMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What gets adapters, by the ends of names: layers, and parameters that are none."""

    modules: list[str]
    parameters: list[str]


def add_adapters(model: Any, config: TrainConfig) -> Any:
    """`model` with adapters on a frozen base. Raises UserError for targets that are not there."""
    torch.manual_seed(config.seed)  # adapters are drawn at random; every rank draws the same
    model.enable_input_require_grads()  # else checkpointed blocks of a frozen base get no gradient
    with nullcontext() if config.method == "qlora" else without_bitsandbytes():
        from peft import LoraConfig, get_peft_model

        if config.adapter:
            return _with_those_of(model, Path(config.adapter))
        found = targets_of(model, config)
        adapters = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            lora_dropout=config.lora_dropout,
            use_dora=config.lora_dora,
            use_rslora=config.lora_rslora,
            target_modules=found.modules,
            target_parameters=found.parameters or None,
            trainable_token_indices=_new_tokens(model) if config.lora_new_tokens else None,
            task_type="CAUSAL_LM",
        )
        return get_peft_model(model, adapters)


def _with_those_of(model: Any, folder: Path) -> Any:
    """`model` with the adapters in `folder`, to be trained on; on the meta device, their shapes.

    Raises UserError for those of another model.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    adapters: Any = LoraConfig.from_pretrained(str(folder))
    adapters.inference_mode = False
    adapters.base_model_name_or_path = None  # where it was trained; the export says where it is
    try:
        made = get_peft_model(model, adapters)
        if next(model.parameters()).device.type == "meta":
            return made
        result: Any = set_peft_model_state_dict(made, load_peft_weights(str(folder), device="cpu"))
        odd = [name for name in result.missing_keys if ".lora_" in name] + result.unexpected_keys
    except (RuntimeError, ValueError) as error:  # other shapes, or layers that are not there
        odd = str(error).strip().splitlines()[:1]
    if odd:
        raise UserError(
            f"train.adapter = {folder}: its adapters are another model's: {odd[0]}",
            do="--set model.path=… with the model that they were trained on",
            code=ExitCode.PREFLIGHT,
        )
    return made


def _new_tokens(model: Any) -> dict[str, list[int]] | None:
    """The tokens whose embeddings are trained, by the names of embedding and head."""
    ids = list(getattr(model, "new_tokens", ()))
    return dict.fromkeys(end_names(model), ids) if ids else None


def targets_of(model: Any, config: TrainConfig) -> Targets:
    """Every matrix between embedding and head that adapters can be put on, or `lora_targets`."""
    converted = _names_peft_converts(model)
    is_simple = config.method == "lora" and not (config.lora_dropout or config.lora_dora)
    layers, others, parameters = [], [], []
    for name in _matrices(model):
        leaf = name.rpartition(".")[2]
        if not _is_adaptable(model, name):
            others.append(name)
        elif leaf not in converted:
            layers.append(name)
        elif is_simple:  # as a layer peft would take it for the experts of that name
            parameters.append(f"{name}.weight")
    if is_simple:
        parameters += _expert_stacks(model)
    if config.lora_targets:
        chosen = set(_chosen(config.lora_targets, [*layers, *parameters]))
        layers = [name for name in layers if name in chosen]
        parameters = [name for name in parameters if name in chosen]
    return Targets(modules=_short(layers, others, 1), parameters=_short(parameters, [], 2))


def covered(model: Any) -> tuple[int, int, dict[str, int]]:
    """(weights with adapters, all weights, those without by the end of their name).

    Of matrices between embedding and head.
    """
    from peft.tuners.lora import LoraLayer

    plain = model.get_base_model()
    head, left_out, adapted = plain.get_output_embeddings(), set[int](), set[int]()
    for module in plain.modules():
        if module is head or isinstance(module, nn.Embedding):
            left_out |= {id(one) for one in module.parameters()}
        elif isinstance(module, LoraLayer):
            name = getattr(module, "parameter_name", "weight")
            adapted.add(id(getattr(module.get_base_layer(), name)))
    reached, without = 0, defaultdict[str, int](int)
    for name, parameter in plain.named_parameters():
        if parameter.dim() < _MATRIX_DIMS or id(parameter) in left_out or ".lora_" in name:
            continue
        if id(parameter) in adapted:
            reached += weights_in(parameter)
        else:
            without[".".join(name.removesuffix(".weight").split(".")[-2:])] += weights_in(parameter)
    return reached, reached + sum(without.values()), without


def coverage_line(model: Any) -> str | None:
    """What there is to say of weights without adapters."""
    reached, total, without = covered(model)
    if not total or reached >= _WELL_COVERED * total:
        return None
    most = sorted(without, key=lambda name: -without[name])[:_MAX_NAMES]
    return (
        f"LORA: adapters are on {reached / total:.1%} of the weights between embedding and head; "
        f"the most without are {', '.join(most)}"
    )


def _matrices(model: Any) -> Iterator[str]:
    """The names of layers that are one matrix, the head left out."""
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and module is not head:
            yield name


def _is_adaptable(model: Any, name: str) -> bool:
    *path, leaf = name.split(".")
    if leaf in _ROUTERS or "router" in path:
        return False
    return not (model.config.model_type in _MAMBA and leaf in _READ_BY_KERNELS)


def _expert_stacks(model: Any) -> list[str]:
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() == _EXPERT_DIMS
        and parameter.is_floating_point()
        and ("expert" in name.lower() or "expert" in _owner(model, name).lower())
    ]


def _owner(model: Any, name: str) -> str:
    return type(model.get_submodule(name.rpartition(".")[0])).__name__


def _chosen(wanted: str, names: list[str]) -> list[str]:
    """Those that end in one of the wanted names, which may have several parts."""
    ends = {end.strip() for end in wanted.split(",") if end.strip()}
    found = [name for name in names if _has_end(name, ends)]
    if missing := {end for end in ends if not any(_has_end(name, {end}) for name in names)}:
        there = sorted({name.removesuffix(".weight").rpartition(".")[2] for name in names})
        raise UserError(
            f"train.lora_targets: no layer of this model ends in {min(missing)!r}; there are "
            f"{', '.join(there)}",
            do=f"--set train.lora_targets={','.join(there[:2])}",
            code=ExitCode.PREFLIGHT,
        )
    return found


def _has_end(name: str, ends: set[str]) -> bool:
    return any(f".{name.removesuffix('.weight')}".endswith(f".{end}") for end in ends)


def _short(names: Iterable[str], others: Iterable[str], num_parts: int) -> list[str]:
    """The last parts of names, where none of `others` ends so as well."""

    def end(name: str) -> str:
        is_weight = num_parts > 1 and name.endswith(".weight")
        return ".".join(name.split(".")[-num_parts - is_weight :])

    taken = {end(name) for name in others}
    return sorted({name if end(name) in taken else end(name) for name in names})


def _names_peft_converts(model: Any) -> frozenset[str]:
    """Layers that peft takes for experts, of models whose experts were layers in transformers 4.

    It does so wherever they stand, so that shared experts and dense layers would go without.
    """
    try:
        conversion: Any = import_module("peft.utils.transformers_weight_conversion")
        kind = conversion._MODEL_TO_CONVERSION_PATTERN.get(model.config.model_type)
        return frozenset(conversion._MOE_TARGET_MODULE_MAPPING.get(kind, ()))
    except (ImportError, AttributeError):  # another version, which has another way
        return frozenset()
