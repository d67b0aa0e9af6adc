"""Multimodal models trained on text: their class, what text passes through, and what it does not.

Vision and audio towers, with the projectors behind them, are frozen. Unless `model.towers` is keep
they are not even made: a `LeftOut` stands in their place, without weights, so nothing counts,
moves, sends or adapts them. The export takes them from the original files (export_towers.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
)

from rundir.errors import ExitCode, UserError


class LeftOut(nn.Module):
    """What stands in the place of a tower that text does not pass through. It has no weights."""

    def __init__(self, tower: nn.Module) -> None:
        """Keep the names of the tower's modules, and the plain values that a model may read."""
        super().__init__()
        self.names = [name for name, _ in tower.named_modules() if name]
        own = {name: value for name, value in vars(tower).items() if name not in self.__dict__}
        self.__dict__.update(own)

    def forward(self, *_: Any, **__: Any) -> Any:
        """Raise UserError: this model's class needs the tower for text as well."""
        raise UserError(
            "model.towers = skip: this model passes text through a tower, which was left out",
            do="--set model.towers=keep",
            code=ExitCode.PREFLIGHT,
        )


def class_for(described: PretrainedConfig) -> Any:
    """Return the class to load and to train for a config.json; None: AutoModelForCausalLM's choice.

    For a multimodal model it is the whole one's, as only that writes what it has read.
    """
    mapping: Any = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    is_known = type(described) in mapping and described.get_text_config() is not described
    if not is_known:
        return None
    model_class = mapping[type(described)]
    model_class = model_class[0] if isinstance(model_class, tuple | list) else model_class
    return None if _is_for_text(described, model_class) else model_class


def _is_for_text(described: PretrainedConfig, whole: Any) -> bool:
    """Return whether a multimodal config.json names another class, for text alone, as its own."""
    mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    if type(described) not in mapping or (of_text := mapping[type(described)]) is whole:
        return False
    return of_text.__name__ in (getattr(described, "architectures", None) or ())


def known_class(described: PretrainedConfig) -> Any:
    """Return the class of transformers' own for such a model; None if its code comes with it."""
    mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING
    whole = class_for(described)
    return mapping[type(described)] if whole is None and type(described) in mapping else whole


def towers_of(model: Any) -> dict[str, nn.Module]:
    """Return the parts of a model that text does not pass through, by name; {} for a text model.

    These are the neighbours of the text model, which is the part with the text's configuration, and
    of what it stands in, except the head.
    """
    text = text_model_name(model)
    if text is None:
        return {}
    head = model.get_output_embeddings()
    towers, above, owner = {}, "", model
    for part in text.split("."):
        for name, module in owner.named_children():
            if name != part and module is not head:
                towers[f"{above}{name}"] = module
        above, owner = f"{above}{part}.", owner.get_submodule(part)
    return towers


def text_model_name(model: Any) -> str | None:
    """Return the name of the text model within a multimodal one; None in a model of text alone."""
    text = model.config.get_text_config()
    if text is model.config:
        return None
    for name, module in model.named_modules():
        if name and isinstance(module, PreTrainedModel) and module.config is text:
            return name
    return None


def freeze_towers(model: Any) -> None:
    """Take gradients from all of a multimodal model but its text model and head."""
    text = text_model_name(model)
    if text is None:
        return
    model.requires_grad_(requires_grad=False)
    model.get_submodule(text).requires_grad_()
    head = model.get_output_embeddings()
    if head is not None:
        head.requires_grad_()


def towers_line(model: Any) -> str | None:
    """Return a line about the parts that text does not pass through; None if there are none."""
    towers = towers_of(model)
    if not towers:
        return None
    are_left_out = all(isinstance(tower, LeftOut) for tower in towers.values())
    what = "not loaded (model.towers=skip)" if are_left_out else "frozen (model.towers=keep)"
    return f"TOWERS: {', '.join(towers)}: {what}; the export has them as the model's files do"


def drop_towers(model: Any) -> None:
    """Put a `LeftOut` in the place of each tower, in place.

    transformers then does not report a tower's weights as unexpected in a checkpoint; all others it
    does.
    """
    expected = set(model._keys_to_ignore_on_load_unexpected or ())
    for name, tower in towers_of(model).items():
        expected.add(rf"^{re.escape(name)}\.")
        if not isinstance(tower, LeftOut):
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, LeftOut(tower))
    model._keys_to_ignore_on_load_unexpected = expected
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tied = getattr(model, "all_tied_weights_keys", None)
    if tied:
        model.all_tied_weights_keys = {
            tied_name: of for tied_name, of in tied.items() if of in names
        }


def in_towers(model: Any) -> Callable[[str], bool]:
    """Return a function that tells of the name of a module or weight if a tower holds it."""
    towers = tuple(f"{name}." for name in towers_of(model))
    return lambda name: f"{name}.".startswith(towers)


def names_in_towers(model: Any) -> Iterator[str]:
    """Yield the names of all modules of the towers, left out or not."""
    for name, tower in towers_of(model).items():
        yield name
        inside = (
            tower.names if isinstance(tower, LeftOut) else [n for n, _ in tower.named_modules()]
        )
        yield from (f"{name}.{part}" for part in inside if part)


@cache
def without_towers(whole: Any) -> Any:
    """Return a subclass of a multimodal model's class, of the same name, without its towers."""

    def init(self: Any, *given: Any, **named: Any) -> None:
        whole.__init__(self, *given, **named)
        drop_towers(self)

    return type(whole.__name__, (whole,), {"__init__": init, "__module__": whole.__module__})
