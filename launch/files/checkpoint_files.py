"""The weights in a model folder by their headers: whether complete, how large, of which type.

Only headers are read, without torch, so this takes milliseconds for a model of any size.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.files.weight_file import Tensor, damaged, read_header, read_pickle
from rundir.errors import ExitCode, UserError
from rundir.units import MIB

_LFS_POINTER = b"version https://git-lfs"
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# In the order in which transformers looks for them.
_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files that hold the weights, in the order in which they are read."""

    files: tuple[Path, ...]
    size_bytes: int
    dtypes: frozenset[str]  # the most common type; for a pickle, all types
    is_pickle: bool
    is_mapped: bool  # false for a pickle that must be read as a whole

    def is_converted(self, dtype: str) -> bool:
        """Return whether a process that reads it as `dtype` holds a private copy."""
        return not self.is_mapped or self.dtypes != {dtype}

    def advice(self, dtype: str) -> str | None:
        """Return what a pickle costs a rank that reads it as `dtype`, and how to convert it."""
        if not self.is_pickle:
            return None
        held_as = min((_ITEM_BYTES[type_] for type_ in self.dtypes), default=_ITEM_BYTES[dtype])
        converted_bytes = self.size_bytes * _ITEM_BYTES[dtype] // held_as
        cost = "each rank that reads it holds {:,} MiB of its own: {}"
        if not self.is_mapped:
            why = "written before torch 1.6 or in its way, it cannot be mapped"
            cost = cost.format(max(self.size_bytes, converted_bytes) // MIB, why)
        elif self.dtypes != {dtype}:
            cost = cost.format(converted_bytes // MIB, f"not all of it is {dtype}")
        else:
            cost = "ranks that read it map it, and share that"
        return f"{self.files[0].name} is a pickle: {cost}\n  → {_convert(self.files[0].parent)}"


def read_checkpoint(folder: Path) -> Checkpoint:
    """Inspect the weights in `folder`. Raises UserError if they are missing or incomplete."""
    try:
        return _read(folder)
    except OSError as error:
        raise UserError(
            f"cannot read the model: {error}",
            do=f"ls -lL {shlex.quote(str(folder))}   # all of it has to be readable",
            code=ExitCode.PREFLIGHT,
        ) from error


def weight_names(folder: Path, is_there: Callable[[str], bool]) -> list[str]:
    """Return the files in `folder` that hold the weights, an index first; [] if there are none.

    The shards that an index names need not exist. `is_there` tells whether a file exists. Raises
    UserError for a config.json or an index that cannot be read, and OSError.
    """
    first = next(filter(is_there, _names(_config(folder))), None)
    if first is None:
        return []
    of_index = _shards(folder / first) if first.endswith(".json") else {}
    return [first, *(file.name for file in of_index)]


def _read(folder: Path) -> Checkpoint:
    config = _config(folder)
    names = _names(config)
    index = next((folder / name for name in names if (folder / name).is_file()), None)
    if index is None:
        raise _without_weights(folder, names)
    shards = _shards(index) if index.suffix == ".json" else {index: set()}
    _check_are_there(index, shards)
    for file in (*shards, folder / "tokenizer.json"):
        _check_is_no_pointer(file)
    if index.name.removesuffix(".index.json").endswith(".bin"):
        return _read_pickles(list(shards))
    tensors = _read_headers(index, shards)
    _check_config(folder, config, tensors)
    num_bytes: Counter[str] = Counter()
    for tensor in tensors.values():
        num_bytes[_FLOATS.get(tensor.dtype, "")] += tensor.size_bytes
    del num_bytes[""]  # indices and masks keep their type, whatever the weights are converted to
    most = num_bytes.most_common(1)
    return Checkpoint(
        files=tuple(shards),
        size_bytes=sum(file.stat().st_size for file in shards),
        dtypes=frozenset(name for name, _ in most),
        is_pickle=False,
        is_mapped=True,
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise damaged(folder, "it holds no model: there is no config.json") from error
    except ValueError as error:
        raise damaged(folder / "config.json", f"it is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}


def _names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the possible names of the weights' file; config.json can name it itself."""
    named = config.get("transformers_weights")
    return (named,) if isinstance(named, str) else _NAMES


def _shards(index: Path) -> dict[Path, set[str]]:
    """Return the files that an index names, in its order, and the tensors in each.

    Its total_size is ignored: many published ones are wrong, and no loader checks it.
    """
    shards: dict[Path, set[str]] = {}
    try:
        for tensor, name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items():
            shards.setdefault(index.parent / name, set()).add(tensor)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(index, f"it is no index of weights: {error!r}") from error
    if not shards:
        raise damaged(index, "it names no file")
    return shards


def _check_are_there(index: Path, shards: Mapping[Path, set[str]]) -> None:
    missing = [file for file in shards if not file.is_file()]
    if missing:
        more = f" (nor are {len(missing) - 1} others)" if len(missing) > 1 else ""
        raise _incomplete(index, f"it names {_absent(missing[0])}{more}")


def _absent(file: Path) -> str:
    if file.is_symlink():  # as in the Hub's cache, if a blob was removed
        return f"{file.name}, which is a link to {file.resolve()}, which is not there"
    return f"{file.name}, which is not there"


def _without_weights(folder: Path, names: tuple[str, ...]) -> UserError:
    dangling = next((folder / name for name in names if (folder / name).is_symlink()), None)
    if dangling is not None:
        return _incomplete(folder, f"it holds {_absent(dangling)}")
    return damaged(folder, f"it holds no weights: there is no {names[0]}")


def _incomplete(path: Path, what: str) -> UserError:
    return UserError(
        f"{path}: {what}",
        do="copy what is missing there, or --set model.path=OWNER/NAME fetches what its copy lacks",
        code=ExitCode.PREFLIGHT,
    )


def _check_is_no_pointer(file: Path) -> None:
    if not file.is_file():
        return
    with file.open("rb") as content:
        start = content.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise UserError(
            f"{file} is a git-lfs pointer of {file.stat().st_size} bytes, not what it stands for",
            do=f"git -C {shlex.quote(str(file.parent))} lfs pull",
            code=ExitCode.PREFLIGHT,
        )


def _read_headers(index: Path, shards: Mapping[Path, set[str]]) -> dict[str, Tensor]:
    """Return the tensors of all files. Raises UserError unless each file matches the index."""
    file_of = {tensor: file for file, named in shards.items() for tensor in named}
    all_tensors: dict[str, Tensor] = {}
    for file, expected in shards.items():
        tensors = read_header(file)
        if missing := expected - tensors.keys():
            raise damaged(file, f"{index.name} says that it holds {min(missing)}, which it lacks")
        # A tensor that the index does not name is still loaded; one in two files, from either.
        if strays := [key for key in tensors if file_of.get(key, file) != file]:
            where = file_of[min(strays)].name
            raise damaged(file, f"it holds {min(strays)}, which {index.name} has in {where}")
        all_tensors |= tensors
    return all_tensors


def _check_config(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError if config.json describes a larger or a different model than the weights."""
    sizes = (config.get("vocab_size"), config.get("hidden_size"))
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding and all(sizes) and embedding.dtype in _FLOATS and embedding.shape != sizes:
        shape = " by ".join(map(str, embedding.shape))
        config_text = f"vocab_size and hidden_size are {sizes[0]} and {sizes[1]}"
        raise _not_of_one_model(folder, config_text, f"an embedding of {shape}")
    layers = {int(match[1]) for tensor in tensors if (match := _LAYER.match(tensor))}
    num_layers = config.get("num_hidden_layers")
    # Weights with more layers than the model are common: the extra ones predict further tokens.
    if layers and isinstance(num_layers, int) and num_layers > len(layers):
        raise _not_of_one_model(
            folder, f"num_hidden_layers = {num_layers}", f"{len(layers)} layers"
        )


def _not_of_one_model(folder: Path, reason: str, held: str) -> UserError:
    return UserError(
        f"{folder}: config.json says {reason}, the weights have {held}",
        do="take config.json and weights from one place; a model of this mix would be wrong",
        code=ExitCode.PREFLIGHT,
    )


def _read_pickles(files: list[Path]) -> Checkpoint:
    pickles = []
    for file in files:
        try:
            pickles.append(read_pickle(file))
        except OSError:
            raise
        except Exception as error:  # a damaged file can raise anything in the parser
            raise damaged(file, f"it is no whole pickle of weights: {error}") from error
        if others := pickles[-1].others:
            raise UserError(
                f"{file} holds more than weights: {', '.join(others[:3])}; it is not loaded, as "
                "that can be code",
                do="take it from where it comes as safetensors, or save its state_dict() alone",
                code=ExitCode.PREFLIGHT,
            )
    return Checkpoint(
        files=tuple(files),
        size_bytes=sum(file.stat().st_size for file in files),
        dtypes=frozenset[str]().union(*(pickle.dtypes for pickle in pickles)),
        is_pickle=True,
        is_mapped=all(pickle.is_zip for pickle in pickles),
    )


def _convert(folder: Path) -> str:
    """Return the command that writes safetensors beside a pickle; loaders then prefer them."""
    program = (
        "from transformers import AutoModelForCausalLM as M; "
        f"M.from_pretrained({str(folder)!r}, dtype='auto').save_pretrained({str(folder)!r})"
    )
    return shlex.join([sys.executable, "-P", "-c", program])
