"""Contents of a weight file, read without loading it or running any code in it.

A safetensors file has a JSON header. An old checkpoint (`.bin`) is a zip file with a pickle, whose
opcodes are read.
"""

from __future__ import annotations

import json
import pickletools
import re
import shlex
import tomllib
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

from rundir.errors import ExitCode, UserError

_MAX_HEADER_BYTES = 100_000_000  # as in safetensors itself

_NUM_PICKLES = 4  # before the raw weights in files of torch before 1.6; the last has the tensors
_MAX_PICKLE_BYTES = 1 << 30  # a table of tensors is about a thousand times smaller
_NAMES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_HARMLESS: set[str] = set(_NAMES["harmless"])
_STORAGES: dict[str, str] = _NAMES["storages"]
_DTYPE = re.compile(r"(b?float|u?int|complex)\d+\w*|bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pickle:
    """The contents of a `.bin` file."""

    dtypes: frozenset[str]  # of its floating-point weights
    others: tuple[str, ...]  # names that are not weights, and could be code
    is_zip: bool  # only then can its weights be mapped instead of read


def read_pickle(path: Path) -> Pickle:
    """Read the names in the pickle in `path`. Raises ValueError for a damaged file, and OSError."""
    with path.open("rb") as file:
        is_zip = zipfile.is_zipfile(file)
        file.seek(0)
        names = _names(_table(file)) if is_zip else _names_of_old(file)
    plain_names = {name.replace("__builtin__ ", "builtins ") for name in names}
    others = (name for name in plain_names - _HARMLESS - _STORAGES.keys() if not _is_torchs(name))
    return Pickle(
        dtypes=frozenset(_STORAGES[name] for name in plain_names & _STORAGES.keys()),
        others=tuple(sorted(name.replace(" ", ".") for name in others)),
        is_zip=is_zip,
    )


def _is_torchs(name: str) -> bool:
    """Return whether the name is a torch function that rebuilds tensors, a storage or a dtype."""
    module, _, attribute = name.partition(" ")
    if module == "torch._utils":
        return attribute.startswith("_rebuild_")
    is_type = attribute.endswith("Storage") or _DTYPE.fullmatch(attribute) is not None
    return module == "torch" and is_type


def _table(file: IO[bytes]) -> IO[bytes]:
    """Return the pickle in a zip file; the weights are its other members."""
    try:
        with zipfile.ZipFile(file) as archive:
            member = next(
                entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")
            )
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
    """Return every `module name` that a pickle refers to. Raises ValueError if it is truncated."""
    names: set[str] = set()
    texts = ["", ""]
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in ("GLOBAL", "INST"):
            names.add(str(argument))
        elif opcode.name == "STACK_GLOBAL":  # it takes the two strings before it
            names.add(" ".join(texts))
        elif "UNICODE" in opcode.name:
            texts = [texts[1], str(argument)]
    return names


class Tensor(NamedTuple):
    """A tensor as the header describes it; `dtype` as spelled there, such as BF16."""

    dtype: str
    size_bytes: int
    shape: tuple[int, ...]


def read_header(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. Raises UserError if its length does not match.

    The format is described at https://huggingface.co/docs/safetensors, "Format".
    """
    size_bytes = file.stat().st_size
    with file.open("rb") as content:
        length_bytes = int.from_bytes(content.read(8), "little")
        if size_bytes < 8 or length_bytes > min(_MAX_HEADER_BYTES, size_bytes - 8):  # noqa: PLR2004 - the size of the length field
            what = f"its header would have {length_bytes:,} bytes, the file has {size_bytes:,}"
            raise damaged(file, what)
        header = content.read(length_bytes)
    try:
        table = {key: entry for key, entry in json.loads(header).items() if key != "__metadata__"}
        spans = {key: entry["data_offsets"] for key, entry in table.items()}
        data_bytes = max((end for _, end in spans.values()), default=0)
        tensors = {
            key: Tensor(str(entry["dtype"]), spans[key][1] - spans[key][0], tuple(entry["shape"]))
            for key, entry in table.items()
        }
    except Exception as error:  # a damaged file can raise anything in the parser
        raise damaged(file, f"its header cannot be read: {error!r}") from error
    if 8 + length_bytes + data_bytes != size_bytes:
        expected = 8 + length_bytes + data_bytes
        raise damaged(file, f"it should have {expected:,} bytes and has {size_bytes:,}")
    return tensors


def damaged(path: Path, what: str) -> UserError:
    """Return the error for a model's file or folder that cannot be used.

    A folder of the Hub's cache holds links: the damaged file is the target.
    """
    whole = path.resolve()
    do = f"rm {shlex.quote(str(whole))}, then copy or fetch it again"
    if whole.is_dir():
        do = "--set model.path=FOLDER with a whole checkpoint, or --set launch.load=random"
    return UserError(f"{path}: {what}", do=do, code=ExitCode.PREFLIGHT)
