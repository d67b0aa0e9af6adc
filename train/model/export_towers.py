"""A multimodal model's export in the layout of the checkpoint that it was loaded from.

What is trained is written by transformers, under the names of the original. All other tensors are
copied from the original's files, bit for bit: towers, whether left out or frozen, and heads that
transformers does not load.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from train.model.multimodal import class_for, drop_towers, towers_of

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TRAINED, _COPIED = "model-text.safetensors", "model-towers.safetensors"


def save_in_layout(plain: Any, base: Path, folder: Path) -> str | None:
    """Write a multimodal model's weights and config.json to `folder`, with all tensors of `base`.

    Return a line for people if the names had to change. Raises OSError (a full disk).
    """
    drop_towers(plain)  # kept ones too: the files have them in their own dtype
    plain.save_pretrained(folder)
    written, original = tensors_of(folder), tensors_of(base)
    if not original:
        if any(base.glob("pytorch_model*.bin*")):
            return _save_with_towers(plain, base, folder, "pickles, and not safetensors")
        return "the towers are not exported: of random weights there are no files to take them from"
    if strange := written.keys() - original.keys():
        return _save_with_towers(plain, base, folder, f"without {min(strange)}")
    _copy_others(plain, folder, written, original)
    return None


def tensors_of(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor in a folder of safetensors; {} if it has none."""
    single, index = folder / _SINGLE, folder / _INDEX
    if single.is_file():
        with safe_open(single, "pt") as opened:
            return dict.fromkeys(opened.keys(), single)
    if not index.is_file():
        return {}
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return {name: folder / file for name, file in named.items()}


def _copy_others(
    plain: Any, folder: Path, written: dict[str, Path], original: dict[str, Path]
) -> None:
    """Add what `original` has and `written` lacks, in a file of its own, and an index of all."""
    others: dict[str, torch.Tensor] = {}
    for file in set(original.values()):
        names = {name for name, holder in original.items() if holder == file} - written.keys()
        if names:
            with safe_open(file, "pt") as opened:
                others |= {name: opened.get_tensor(name) for name in names}
    if not others:
        return
    for name in others:  # a head stored beside the embedding that it is tied to, which was trained
        if (tied := _tied(plain, name)) is not None:
            others[name] = tied.detach().cpu().contiguous().clone()
    save_file(others, folder / _COPIED, metadata={"format": "pt"})
    if (folder / _SINGLE).is_file():
        (folder / _SINGLE).rename(folder / _TRAINED)
        written = dict.fromkeys(written, folder / _TRAINED)
    places = {name: file.name for name, file in written.items()} | dict.fromkeys(others, _COPIED)
    size_bytes = sum((folder / name).stat().st_size for name in set(places.values()))
    index = {"metadata": {"total_size": size_bytes}, "weight_map": dict(sorted(places.items()))}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _tied(plain: Any, name: str) -> torch.Tensor | None:
    """Return the trained weight that a stored tensor is tied to; None if it is tied to none."""
    tied = getattr(plain, "all_tied_weights_keys", None) or {}
    for tied_name, source in tied.items():
        if f".{name}".endswith(f".{tied_name}"):
            parameter: torch.Tensor = plain.get_parameter(source)
            return parameter
    return None


def _save_with_towers(plain: Any, base: Path, folder: Path, why: str) -> str:
    """Write the whole model under the names that transformers uses now; return a line about it.

    The towers are loaded from `base` onto the host, in the dtype of its files.
    """
    for file in folder.glob("model*.safetensors*"):
        file.unlink()
    whole = class_for(plain.config).from_pretrained(base, dtype="auto", weights_only=True)
    for name, tower in towers_of(whole).items():
        owner, _, own = name.rpartition(".")
        setattr(plain.get_submodule(owner), own, tower)
    plain.save_pretrained(folder)
    return f"the weights have the names that transformers gives them now: the original's are {why}"
