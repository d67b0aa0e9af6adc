"""LoRA: a model with adapters, new ones or existing ones to train further (Hu et al. 2022).

Experts are stacks of matrices that are not layers of their own. peft adapts such a parameter by
adding the product of its adapters to a copy of it, in each forward pass and in the parameter's
dtype. Adapters of layers multiply in the layer's dtype (train/model/adapter_dtype.py); their
weights, gradients and optimizer states are float32.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rundir.config import TrainConfig
from rundir.errors import ExitCode, UserError
from train.model.hidden_packages import without_cuda_at_import
from train.model.lora_targets import targets_of
from train.model.multimodal import in_towers
from train.model.new_tokens import end_names
from train.model.quantize import weights_in

_MATRIX_DIMS = 2
_WELL_COVERED = 0.995
_MAX_NAMES = 4


def add_adapters(model: Any, config: TrainConfig) -> Any:
    """Return `model` with adapters on a frozen base. Raises UserError for missing targets."""
    torch.manual_seed(config.seed)  # adapters are initialised at random, the same on every rank
    model.enable_input_require_grads()  # else checkpointed blocks of a frozen base get no gradient
    with without_cuda_at_import(but="bitsandbytes" if config.method == "qlora" else ""):
        from train.model.adapter_dtype import compute_in_dtype_of_layers
        from train.model.one_product import add_in_one_product
        from train.model.shared_layers import share_adapters

        folder = Path(config.adapter)
        made = _with_those_of(model, folder) if config.adapter else _with_new(model, config)
        share_adapters(made, is_new=not config.adapter)
        compute_in_dtype_of_layers(made, is_new=not config.adapter)
        add_in_one_product(made)
        return made


def _with_new(model: Any, config: TrainConfig) -> Any:
    """Return `model` with new adapters. Raises UserError for missing targets."""
    from peft import LoraConfig, get_peft_model

    modules, parameters = targets_of(model, config)
    new_tokens = list(getattr(model, "new_tokens", ())) if config.lora_new_tokens else []
    adapters = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_dora=config.lora_dora,
        use_rslora=config.lora_rslora,
        target_modules=modules,
        target_parameters=parameters or None,
        trainable_token_indices=dict.fromkeys(end_names(model), new_tokens) if new_tokens else None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapters)


def _with_those_of(model: Any, folder: Path) -> Any:
    """Return `model` with the adapters in `folder`, trainable; on the meta device only shapes.

    Raises UserError for adapters of another model.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from peft.utils import load_peft_weights

    adapters: Any = LoraConfig.from_pretrained(str(folder))
    adapters.inference_mode = False
    adapters.base_model_name_or_path = None  # where it was trained; the export sets it anew
    try:
        made = get_peft_model(model, adapters)
        if next(model.parameters()).device.type == "meta":
            return made
        result: Any = set_peft_model_state_dict(made, load_peft_weights(str(folder), device="cpu"))
        odd = [name for name in result.missing_keys if ".lora_" in name] + result.unexpected_keys
    except (RuntimeError, ValueError) as error:  # other shapes, or missing layers
        odd = str(error).strip().splitlines()[:1]
    if odd:
        raise UserError(
            f"train.adapter = {folder}: its adapters are another model's: {odd[0]}",
            do="--set model.path=… with the model that they were trained on",
            code=ExitCode.PREFLIGHT,
        )
    return made


def covered(model: Any) -> tuple[int, int, dict[str, int]]:
    """Return (weights with adapters, all weights, those without by the end of their name).

    Only matrices between embedding and head count.
    """
    from peft.tuners.lora import LoraLayer

    plain = model.get_base_model()
    head, left_out, adapted = plain.get_output_embeddings(), set[int](), set[int]()
    for module in plain.modules():
        if module is head or isinstance(module, nn.Embedding):
            left_out |= {id(weight) for weight in module.parameters()}
        elif isinstance(module, LoraLayer):
            name = getattr(module, "parameter_name", "weight")
            adapted.add(id(getattr(module.get_base_layer(), name)))
    reached, without = 0, defaultdict[str, int](int)
    is_frozen = in_towers(plain)
    for name, parameter in plain.named_parameters():
        is_other = id(parameter) in left_out or ".lora_" in name or is_frozen(name)
        if parameter.dim() < _MATRIX_DIMS or is_other:
            continue
        if id(parameter) in adapted:
            reached += weights_in(parameter)
        else:
            without[".".join(name.removesuffix(".weight").split(".")[-2:])] += weights_in(parameter)
    return reached, reached + sum(without.values()), without


def coverage_line(model: Any) -> str | None:
    """Return a line about weights without adapters; None if nearly all have them."""
    reached, total, without = covered(model)
    if not total or reached >= _WELL_COVERED * total:
        return None
    most = sorted(without, key=lambda name: -without[name])[:_MAX_NAMES]
    return (
        f"LORA: adapters are on {reached / total:.1%} of the weights between embedding and head; "
        f"the most without are {', '.join(most)}"
    )
