"""Models for tests: shapes of a few kB, and the folder of `tiny`, intact or broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launch.config.resolve import resolve

# For the byte tokenizer of `tiny`.
SMALL: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
}
QWEN3 = SMALL | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True}
LLAMA = SMALL | {"model_type": "llama", "tie_word_embeddings": False}
# Layers of its own kind, dropout, and attention masks and biases where others have none.
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 260,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 128,
    "tie_word_embeddings": True,
}
MOE = SMALL | {"model_type": "mixtral", "num_local_experts": 4, "tie_word_embeddings": False}
# The settings of GPT-2 that have to be 0 for two forward passes to be the same.
NO_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)


def tiny_model(folder: Path) -> Path:
    """Make the model of `tiny` as it is made for a run."""
    from train.model.make_checkpoint import make_checkpoint

    make_checkpoint(resolve("tiny", (), {})[0], folder)
    return folder


def with_nan(folder: Path, name: str) -> Path:
    """Make the same model with a NaN in the tensor of that name."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    return folder
