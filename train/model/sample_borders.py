"""What a forward pass is told of where samples begin, so that nobody has to ask the device.

An answer from the device comes only once it has computed all that was asked of it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import masking_utils

from train.model.varlen import TAKE_BORDERS

PRIVATE = ("transformers.masking_utils:find_packed_sequence_indices",)
SAMPLE_STARTS = "sample_starts"  # the argument that train/model/apart.py takes out again


def borders(
    model: Any,
    cu_seq_lens: torch.Tensor | None,
    max_length: int,
    starts: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the arguments that tell a Hugging Face model where samples begin: those of `Batch`.

    There are none for a model whose attention takes a mask, unless it has layers that
    train/model/apart.py gives each sample by itself.
    """
    told: dict[str, Any] = {}
    if cu_seq_lens is not None and model.config._attn_implementation in TAKE_BORDERS:
        told |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), cu_seq_lens)
        told |= dict.fromkeys(("max_length_q", "max_length_k"), max_length)
    if starts and getattr(model, "takes_sample_starts", False):
        told[SAMPLE_STARTS] = starts
    return told


@contextmanager
def packing_known(*, is_packed: bool | None) -> Iterator[None]:
    """Tell transformers, which makes masks from positions, whether rows hold several samples.

    Otherwise it looks, once for each kind of mask in each forward pass. None lets it look.
    """
    look = getattr(masking_utils, "find_packed_sequence_indices", None)
    if look is None or is_packed is None:
        yield
        return

    def sample_of_each(position_ids: torch.Tensor) -> torch.Tensor | None:
        if not is_packed:
            return None
        is_next = position_ids.diff(dim=-1, prepend=position_ids[:, :1] - 1) == 1
        return (~is_next).cumsum(-1)

    masking_utils.find_packed_sequence_indices = sample_of_each
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = look
