"""One safetensors file as its header describes it, read without the library and without weights."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import NamedTuple

from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_MAX_HEADER_BYTES = 100_000_000  # as in safetensors itself


class Tensor(NamedTuple):
    """What a header says of one tensor; `dtype` in its own spelling, as BF16."""

    dtype: str
    size_bytes: int
    shape: tuple[int, ...]


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors that a file holds. Raises UserError unless the file is as long as they say.

    The format: https://huggingface.co/docs/safetensors, "Format".
    """
    size_bytes = file.stat().st_size
    with file.open("rb") as content:
        length_bytes = int.from_bytes(content.read(8), "little")
        if size_bytes < 8 or length_bytes > min(_MAX_HEADER_BYTES, size_bytes - 8):  # noqa: PLR2004 - the length's own size
            what = f"its header would have {length_bytes:,} bytes, the file has {size_bytes:,}"
            raise damaged(file, what)
        header = content.read(length_bytes)
    try:
        table = {key: one for key, one in json.loads(header).items() if key != "__metadata__"}
        spans = {key: one["data_offsets"] for key, one in table.items()}
        data_bytes = max((end for _, end in spans.values()), default=0)
        tensors = {
            key: Tensor(str(one["dtype"]), spans[key][1] - spans[key][0], tuple(one["shape"]))
            for key, one in table.items()
        }
    except Exception as error:  # a damaged file may trip the parser in any way
        raise damaged(file, f"its header cannot be read: {error!r}") from error
    if 8 + length_bytes + data_bytes != size_bytes:
        expected = 8 + length_bytes + data_bytes
        raise damaged(file, f"it should have {expected:,} bytes and has {size_bytes:,}")
    return tensors


def damaged(path: Path, what: str) -> UserError:
    """The error for a file, or a folder, of a model that cannot be used.

    A folder of the Hub's cache holds links: what is damaged is the file behind.
    """
    whole = path.resolve()
    do = f"rm {shlex.quote(str(whole))}, then copy or fetch it again"
    if whole.is_dir():
        do = "--set model.path=FOLDER with a whole checkpoint, or --set launch.load=random"
    return UserError(f"{path}: {what}", do=do, code=ExitCode.PREFLIGHT)
