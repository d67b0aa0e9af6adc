"""Packages that peft imports wherever they are installed, and that initialise CUDA when loaded.

None of our models has their layers (but QLoRA bitsandbytes'), and the zygote imports peft: ranks
could not be forked from it any more. NVIDIA's PyTorch images come with transformer_engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# peft/import_utils.py: is_bnb_available, is_te_pytorch_available
_HIDDEN = ("bitsandbytes", "transformer_engine")


@contextmanager
def without_cuda_at_import(*, but: str = "") -> Iterator[None]:
    """Make peft believe, within the block, that these packages are not installed.

    The one named `but` stays visible, as do those that this process has imported already.
    """
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in _HIDDEN if name != but and name not in modules]
    modules |= dict.fromkeys(hidden)  # None: the import system's own way to mark a missing module
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
