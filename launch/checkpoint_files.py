"""The weights of a model folder as its files say themselves: whole or not, how large, which type.

Only headers are read, so this takes milliseconds for a model of any size; and without torch.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from launch.memory import MIB
from launch.pickles import look_into
from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_MAX_HEADER_BYTES = 100_000_000  # as in safetensors itself
_LFS_POINTER = b"version https://git-lfs"
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# In the order in which transformers looks for them.
_NAMES = ("model.safetensors", "model.safetensors.index.json",
          "pytorch_model.bin", "pytorch_model.bin.index.json")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files that weights are read from, in the order in which they are read."""

    files: tuple[Path, ...]
    size_bytes: int
    dtypes: frozenset[str]  # of most of its weights; of a pickle, all that occur
    is_pickle: bool
    is_mapped: bool  # processes that read it share its pages, as long as the dtype fits

    def advice(self, dtype: str) -> str | None:
        """What a pickle costs a rank that reads it as `dtype`, and how to have none."""
        if not self.is_pickle:
            return None
        held_as = min((_ITEM_BYTES[one] for one in self.dtypes), default=_ITEM_BYTES[dtype])
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
    """Look at the weights in `folder`. Raises UserError when they are not there or not whole."""
    try:
        return _read(folder)
    except OSError as error:
        raise UserError(
            f"cannot read the model: {error}",
            do=f"ls -lL {shlex.quote(str(folder))}   # all of it has to be readable",
            code=ExitCode.PREFLIGHT,
        ) from error


def _read(folder: Path) -> Checkpoint:
    found = next((folder / name for name in _names(folder) if (folder / name).is_file()), None)
    if found is None:
        raise _damaged(folder, f"it holds no weights: there is no {_NAMES[0]}")
    shards = _shards(found) if found.suffix == ".json" else {found: set()}
    for file in shards:
        _check_is_no_pointer(file)
    if found.name.removesuffix(".index.json").endswith(".bin"):
        return _read_pickles(list(shards))
    num_bytes: Counter[str] = Counter()
    for file, expected in shards.items():
        tensors = _read_header(file)
        if missing := expected - tensors.keys():
            raise _damaged(file, f"{found.name} says that it holds {min(missing)}, which it lacks")
        for dtype, tensor_bytes in tensors.values():
            num_bytes[_FLOATS.get(dtype, "")] += tensor_bytes
    del num_bytes[""]  # indices and masks are what they are, whatever the weights become
    most = num_bytes.most_common(1)
    return Checkpoint(
        files=tuple(shards), size_bytes=sum(file.stat().st_size for file in shards),
        dtypes=frozenset(name for name, _ in most), is_pickle=False, is_mapped=True,
    )  # fmt: skip


def _names(folder: Path) -> tuple[str, ...]:
    """Where the weights may be: config.json can say so itself."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _damaged(folder, "it holds no model: there is no config.json") from error
    except ValueError as error:
        raise _damaged(folder / "config.json", f"it is not JSON: {error}") from error
    named = config.get("transformers_weights") if isinstance(config, dict) else None
    return (named,) if isinstance(named, str) else _NAMES


def _shards(index: Path) -> dict[Path, set[str]]:
    """The files that an index names, in its order, and the tensors in each."""
    shards: dict[Path, set[str]] = {}
    try:
        for tensor, name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items():
            shards.setdefault(index.parent / name, set()).add(tensor)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(index, f"it is no index of weights: {error!r}") from error
    missing = [file.name for file in shards if not file.is_file()]
    if missing or not shards:
        text = f"{missing[0]}, which is not there" if missing else "no file"
        more = f" (nor are {len(missing) - 1} others)" if len(missing) > 1 else ""
        raise _damaged(index, f"it names {text}{more}")
    return shards


def _check_is_no_pointer(file: Path) -> None:
    with file.open("rb") as content:
        start = content.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise UserError(
            f"{file} is a git-lfs pointer of {file.stat().st_size} bytes, not the weights",
            do=f"git -C {shlex.quote(str(file.parent))} lfs pull",
            code=ExitCode.PREFLIGHT,
        )


def _read_header(file: Path) -> dict[str, tuple[str, int]]:
    """Tensor → its type and bytes. Raises UserError unless the file is as long as they say.

    The format: https://huggingface.co/docs/safetensors, "Format".
    """
    size_bytes = file.stat().st_size
    with file.open("rb") as content:
        length_bytes = int.from_bytes(content.read(8), "little")
        if size_bytes < 8 or length_bytes > min(_MAX_HEADER_BYTES, size_bytes - 8):  # noqa: PLR2004 - the length's own size
            what = f"its header would have {length_bytes:,} bytes, the file has {size_bytes:,}"
            raise _damaged(file, what)
        header = content.read(length_bytes)
    try:
        table = {key: one for key, one in json.loads(header).items() if key != "__metadata__"}
        spans = {key: (str(one["dtype"]), *one["data_offsets"]) for key, one in table.items()}
        tensors = {key: (dtype, end - begin) for key, (dtype, begin, end) in spans.items()}
        data_bytes = max((end for _, _, end in spans.values()), default=0)
    except Exception as error:  # a damaged file may trip the parser in any way
        raise _damaged(file, f"its header cannot be read: {error!r}") from error
    if 8 + length_bytes + data_bytes != size_bytes:
        expected = 8 + length_bytes + data_bytes
        raise _damaged(file, f"it should have {expected:,} bytes and has {size_bytes:,}")
    return tensors


def _read_pickles(files: list[Path]) -> Checkpoint:
    pickles = []
    for file in files:
        try:
            pickles.append(look_into(file))
        except OSError:
            raise
        except Exception as error:  # a damaged file may trip the parser in any way
            raise _damaged(file, f"it is no whole pickle of weights: {error}") from error
        if others := pickles[-1].others:
            raise UserError(
                f"{file} holds more than weights: {', '.join(others[:3])}; it is not loaded, as "
                "that can be code",
                do="take it from where it comes as safetensors, or save its state_dict() alone",
                code=ExitCode.PREFLIGHT,
            )
    return Checkpoint(
        files=tuple(files), size_bytes=sum(file.stat().st_size for file in files),
        dtypes=frozenset[str]().union(*(one.dtypes for one in pickles)),
        is_pickle=True, is_mapped=all(one.is_zip for one in pickles),
    )  # fmt: skip


def _convert(folder: Path) -> str:
    """The command that writes safetensors beside a pickle; they are preferred from then on."""
    program = (
        "from transformers import AutoModelForCausalLM as M; "
        f"M.from_pretrained({str(folder)!r}, dtype='auto').save_pretrained({str(folder)!r})"
    )
    return shlex.join([sys.executable, "-P", "-c", program])


def _damaged(path: Path, what: str) -> UserError:
    """A folder of the Hub's cache holds links: what is damaged is the file behind."""
    whole = path.resolve()
    do = f"rm {shlex.quote(str(whole))}, then copy or fetch it again"
    if whole.is_dir():
        do = "--set model.path=FOLDER with a whole checkpoint, or --set launch.load=random"
    return UserError(f"{path}: {what}", do=do, code=ExitCode.PREFLIGHT)
