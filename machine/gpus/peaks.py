"""What a GPU can do at most: operations and bytes a second, by its name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple


class Peak(NamedTuple):
    """Dense TFLOP/s of a GPU by dtype, None if one is not supported; its memory's GB/s."""

    float32: float
    memory: float
    bfloat16: float | None = None
    tf32: float | None = None


_PEAKS: dict[str, dict[str, float]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
# Variants with the same name that are slower or faster by an unknown share.
_OTHERS = re.compile(r"\b(Ti|SUPER|D|Laptop|Max-Q|MIG)\b", re.IGNORECASE)


def peak_of(name: str) -> Peak | None:
    """Return the peak of a GPU with that CUDA name ("NVIDIA H100 80GB HBM3"); None if unknown."""
    words = re.sub(r"[-_]", " ", name)
    if _OTHERS.search(words):
        return None
    for known, peak in _PEAKS.items():
        if re.search(rf"\b{known}\b", words, re.IGNORECASE):
            return Peak(**peak)
    return None
