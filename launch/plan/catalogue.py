"""GPUs by name, with the part of their memory that a process can see: those of catalogue.toml."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rundir.errors import UserError
from rundir.units import GIB

# The driver keeps some of the memory that NVML counts: of an H100's 81,559 MiB a process sees 79.1
# GiB, of an L40S's 46,068 MiB 44.5 GiB. For GPUs of this machine the figure comes from NVML, so
# this is taken off.
VISIBLE_SHARE = 0.99
# Hopper: H20, H100, H200, H800, GH200. Blackwell: B100 to B300, GB200, GB300, RTX 5050 to 5090, and
# those that say so (developer.nvidia.com/cuda-gpus).
_HOPPER_OR_LATER = re.compile(r"\bG?H\d00\b|\bH20\b|\bG?B\d00\b|\b50[5-9]0\b|blackwell", re.I)


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A GPU that can be named; `memory_bytes` is the total that a process sees."""

    name: str
    memory_bytes: int
    source: str  # of that figure
    others: tuple[str, ...] = ()  # other names for it
    is_column: bool = False  # in the table for a GPU that is not known

    @property
    def is_hopper_or_later(self) -> bool:
        """Whether its name is that of a GPU of compute capability 9.0 or more."""
        return _HOPPER_OR_LATER.search(self.name) is not None


def _catalogue() -> Iterator[GpuKind]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for row in tomllib.loads(text)["gpu"]:
        yield GpuKind(
            name=row["name"],
            memory_bytes=int(row["gib"] * GIB),
            source=row["source"],
            others=tuple(row.get("others", ())),
            is_column=row.get("column", False),
        )


CATALOGUE = tuple(_catalogue())
COLUMNS = tuple(kind for kind in CATALOGUE if kind.is_column)  # of each common size, small to large


def gpu_kind(name: str) -> GpuKind:
    """Return the GPU of that name, however it is spelt (h100, H100-80GB, NVIDIA_H100_80G).

    Raises UserError, with the nearest names, for an unknown one.
    """
    known = {_plain(gpu_name): kind for kind in CATALOGUE for gpu_name in (kind.name, *kind.others)}
    plain = _plain(name)
    if plain in known:
        return known[plain]
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.5)
    names = list(dict.fromkeys(known[gpu_name].name for gpu_name in near))
    names = names or [kind.name for kind in COLUMNS]
    raise UserError(
        f"no GPU {name!r} in the catalogue: there are {', '.join(kind.name for kind in CATALOGUE)}",
        do=f"--gpu {names[0]}" + "".join(f", or --gpu {other}" for other in names[1:]),
    )


def _plain(name: str) -> str:
    """Return the name without case, punctuation and vendor, and with G for GB and GiB."""
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    text = re.sub(r"(nvidia|geforce|tesla|sxm\d?|pcie|hbm\w*$)", "", text)
    return re.sub(r"(?<=\d)gi?b$", "g", text)
