"""torch.compile, block by block: DDP's hooks and whatever is around them stay as they are."""

from __future__ import annotations

from typing import Any

from torch import nn

from train.model import plain_model


def compile_blocks(model: Any) -> int:
    """Have each block of layers compiled at its first forward; returns how many there are.

    Not the model as a whole: DDP could then not send gradients while others are still made, and
    blocks, which are all alike, are compiled once (pytorch#104674).
    """
    blocks = blocks_of(plain_model(model))
    for block in blocks:
        block.compile()
    return len(blocks)


def blocks_of(plain: nn.Module) -> list[nn.Module]:
    """The layers of a Hugging Face model that it names as whole, or else those of its longest list.

    Checkpointing goes around them, so what is compiled is recomputed too.
    """
    kinds = set(getattr(plain, "_no_split_modules", None) or ())
    named = [module for module in plain.modules() if type(module).__name__ in kinds]
    lists = [list(module) for module in plain.modules() if isinstance(module, nn.ModuleList)]
    return named or max(lists, key=len, default=[])
