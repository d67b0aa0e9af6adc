"""Checkpoints of the old kind (`.bin`): pickles, looked into without running anything in them."""

from __future__ import annotations

import pickletools
import re
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

_NUM_PICKLES = 4  # before the raw weights of a file older than torch 1.6; the last has the tensors
_MAX_PICKLE_BYTES = 1 << 30  # a table of tensors is a thousand times smaller
# What torch's own weights_only loader lets a checkpoint name, besides what torch rebuilds itself.
_HARMLESS = {
    "collections OrderedDict",
    "collections Counter",
    "_codecs encode",
    "builtins set",
    "builtins bytearray",
    "builtins complex",
    "torch Size",
    "torch Tensor",
    "torch device",
    "torch.nn.parameter Parameter",
    "torch.serialization _get_layout",
}
_STORAGES = {
    "torch DoubleStorage": "float64",
    "torch FloatStorage": "float32",
    "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16",
}
_DTYPE = re.compile(r"(b?float|u?int|complex)\d+\w*|bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pickle:
    """What a `.bin` file holds."""

    dtypes: frozenset[str]  # of its floating-point weights
    others: tuple[str, ...]  # what it names that is no weight, and could be code
    is_zip: bool  # only then can its weights be mapped instead of read


def look_into(path: Path) -> Pickle:
    """Read what the pickle in `path` names. Raises ValueError for a damaged file, and OSError."""
    with path.open("rb") as file:
        is_zip = zipfile.is_zipfile(file)
        file.seek(0)
        names = _names(_table(file)) if is_zip else _names_of_old(file)
    found = {name.replace("__builtin__ ", "builtins ") for name in names}
    others = (name for name in found - _HARMLESS - _STORAGES.keys() if not _is_torchs(name))
    return Pickle(
        dtypes=frozenset(_STORAGES[name] for name in found & _STORAGES.keys()),
        others=tuple(sorted(name.replace(" ", ".") for name in others)),
        is_zip=is_zip,
    )


def _is_torchs(name: str) -> bool:
    """Whether torch rebuilds a tensor with it, or stores one in it."""
    module, _, attribute = name.partition(" ")
    if module == "torch._utils":
        return attribute.startswith("_rebuild_")
    is_type = attribute.endswith("Storage") or _DTYPE.fullmatch(attribute) is not None
    return module == "torch" and is_type


def _table(file: IO[bytes]) -> IO[bytes]:
    """The pickle of a zip file; the weights are its other members."""
    try:
        with zipfile.ZipFile(file) as archive:
            member = next(one for one in archive.infolist() if one.filename.endswith("/data.pkl"))
            if member.file_size > _MAX_PICKLE_BYTES:
                raise ValueError(f"its table of tensors has {member.file_size:,} bytes")
            return BytesIO(archive.read(member))
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ValueError(str(error) or "it has no table of tensors") from error


def _names_of_old(file: IO[bytes]) -> set[str]:
    names: set[str] = set()
    for _ in range(_NUM_PICKLES):
        names |= _names(file)
    return names


def _names(file: IO[bytes]) -> set[str]:
    """Every `module name` that one pickle refers to. Raises ValueError when it is not whole."""
    names: set[str] = set()
    texts = ["", ""]
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in ("GLOBAL", "INST"):
            names.add(str(argument))
        elif opcode.name == "STACK_GLOBAL":  # it takes the two texts before it
            names.add(" ".join(texts))
        elif "UNICODE" in opcode.name:
            texts = [texts[1], str(argument)]
    return names
