"""GPUs by name, with the part of their memory that a process can see."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

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

    @property
    def is_hopper_or_later(self) -> bool:
        """Whether its name is that of a GPU of compute capability 9.0 or more."""
        return _HOPPER_OR_LATER.search(self.name) is not None


def _kind(name: str, gib: float, source: str, *others: str) -> GpuKind:
    return GpuKind(name, int(gib * GIB), source, others)


_OOM = "total capacity in an out-of-memory message of torch, github.com/"

_NO_SOURCE = "what its users see in torch; not measured here yet"

# Of GPUs with the same name and slightly different figures, the smaller one is listed.
CATALOGUE = (
    _kind("T4-16G", 14.75, f"{_OOM}hpcaitech/Open-Sora/issues/697", "T4", "16G"),
    _kind("V100-16G", 15.78, f"{_OOM}kchengiva/Shift-GCN/issues/34"),
    _kind("A10G-24G", 21.99, f"{_OOM}zai-org/CogVLM/issues/236 (an A10)", "A10G", "A10", "A10-24G"),
    _kind("L4-24G", 21.99, "taken to be an A10's: NVML lists both with about 23,030 MiB", "L4"),
    _kind(
        "24G",
        23.5,
        f"the least of such cards, as an A30: {_OOM}google/RB-Modulation/issues/5",
        "A30",
        "A30-24G",
        "RTX3090",
        "3090",
        "A5000",
        "RTXA5000",
    ),
    _kind("4090", 23.64, f"{_OOM}ali-vilab/VGen/issues/104", "RTX4090", "4090-24G"),
    _kind(
        "5090", 31.36, f"{_OOM}TrajectoryCrafter/TrajectoryCrafter/issues/20", "RTX5090", "5090-32G"
    ),
    _kind("V100-32G", 31.74, f"{_OOM}liucongg/ChatGLM-Finetuning/issues/73", "V100", "32G"),
    _kind("A100-40G", 39.5, f"{_OOM}TianheWu/CoSeR/issues/10", "40G"),
    _kind(
        "48G",
        44.4,
        f"the least of such cards, as an L40: {_OOM}QwenLM/Qwen3-VL/issues/2097",
        "L40",
        "L40-48G",
        "A40",
        "A40-48G",
        "A6000",
        "RTXA6000",
    ),
    _kind("L40S-48G", 44.53, f"{_OOM}Wan-Video/Wan2.1/issues/205", "L40S"),
    _kind("A100-80G", 79.1, f"{_OOM}lianqi1008/Control-GIC/issues/6", "A100", "80G"),
    _kind("H100-80G", 79.1, _NO_SOURCE, "H100", "H800", "H800-80G"),
    _kind("H200-141G", 139.8, _NO_SOURCE, "H200", "141G"),
    _kind("B200-180G", 178.0, _NO_SOURCE, "B200", "180G"),
)
COLUMNS = ("24G", "48G", "H100-80G", "H200-141G", "B200-180G")


def gpu_kind(name: str) -> GpuKind:
    """Return the GPU of that name, however it is spelt (h100, H100-80GB, NVIDIA_H100_80G).

    Raises UserError, with the nearest names, for an unknown one.
    """
    known = {_plain(gpu_name): kind for kind in CATALOGUE for gpu_name in (kind.name, *kind.others)}
    plain = _plain(name)
    if plain in known:
        return known[plain]
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.5)
    names = list(dict.fromkeys(known[gpu_name].name for gpu_name in near)) or list(COLUMNS)
    raise UserError(
        f"no GPU {name!r} in the catalogue: there are {', '.join(kind.name for kind in CATALOGUE)}",
        do=f"--gpu {names[0]}" + "".join(f", or --gpu {other}" for other in names[1:]),
    )


def column_kinds() -> list[GpuKind]:
    """Return one GPU of each common size, from small to large."""
    return [gpu_kind(name) for name in COLUMNS]


def _plain(name: str) -> str:
    """Return the name without case, punctuation and vendor, and with G for GB and GiB."""
    text = re.sub(r"[^a-z0-9]", "", name.lower())
    text = re.sub(r"(nvidia|geforce|tesla|sxm\d?|pcie|hbm\w*$)", "", text)
    return re.sub(r"(?<=\d)gi?b$", "g", text)
