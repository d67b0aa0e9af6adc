"""Tokens that were added to a tokenizer and have no embedding in the model yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from train.data.fits_model import num_tokens


def grow(model: Any, folder: Path | None) -> Any:
    """Return the model with an embedding, and a row of its head, for each token of the tokenizer.

    New rows start as the mean of all others, the same on every rank. Their ids are
    `model.new_tokens`.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    num = num_tokens(folder, rows) if folder is not None else 0
    model.new_tokens = range(rows, max(rows, num))
    if not num:
        return model
    model.resize_token_embeddings(num, mean_resizing=False)
    ends = {model.get_input_embeddings(), model.get_output_embeddings()} - {None}
    with torch.no_grad():
        for end in ends:
            end.weight[rows:] = end.weight[:rows].mean(0, dtype=torch.float32).to(end.weight.dtype)
    return model


def end_names(model: Any) -> list[str]:
    """Return the names of a model's embedding, and of its head if that has weights of its own."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    ends = [embedding] if head is None or head.weight is embedding.weight else [embedding, head]
    return [name for name, module in model.named_modules() if any(module is end for end in ends)]
