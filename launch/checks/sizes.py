"""The size of a model, from its architecture: enough to see that there is no room for it.

The memory that training takes on a GPU is up to the plan (launch/plan); here are only the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rundir.config import RunConfig, Sources

_ADAPTER_BYTES = 4  # of a LoRA weight: peft keeps adapters in float32
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_ADAM_STATES = 2
_ITS_OWN = ("profile", "default", "run ", "option --demo")  # sources of a model with that shape
_KNOWN = ("qwen2", "qwen3", "llama", "mistral")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The size of a model, counted from the shapes that these architectures have."""

    num_parameters: int
    num_adapter_parameters: int  # of LoRA on every linear layer of a block

    def loaded_bytes(self, config: RunConfig) -> int:
        """Return the memory that all weights take at least, in bytes."""
        if config.train.method == "qlora":
            return self.num_parameters // 2
        return self.num_parameters * _ITEM_BYTES[config.model.dtype]

    def exported_bytes(self, config: RunConfig) -> int:
        """Return the disk space of all weights, once they are written, in bytes."""
        if config.train.method != "full" and not config.train.merge_adapters:
            return self.num_adapter_parameters * _ADAPTER_BYTES
        return self.num_parameters * _ITEM_BYTES[config.model.dtype]

    def checkpoint_bytes(self, config: RunConfig) -> int:
        """Return the bytes of a checkpoint on disk: trained weights and AdamW's two states."""
        num, size = self.num_parameters, _ITEM_BYTES[config.model.dtype]
        if config.train.method != "full":
            num, size = self.num_adapter_parameters, _ADAPTER_BYTES
        state = 1 if config.train.optimizer == "adamw-8bit" else size
        return num * (size + _ADAM_STATES * state)


def model_size(config: RunConfig, sources: Sources) -> ModelSize | None:
    """Return the size of the model to train, or None if [architecture] does not determine it."""
    shape = config.architecture
    is_of_this_model = sources.get("model.path", "").startswith(_ITS_OWN)
    if not is_of_this_model or shape.get("model_type") not in _KNOWN:
        return None
    hidden = shape["hidden_size"]
    linears = _linears(shape)
    head_dim = _head_dim(shape)
    per_layer = sum(rows * columns for rows, columns in linears) + 2 * hidden
    if shape["model_type"] == "qwen2":  # biases of query, key and value
        per_layer += sum(columns for _, columns in linears[:3])
    if shape["model_type"] == "qwen3":  # norms of query and key
        per_layer += 2 * head_dim
    num_embeddings = 1 if shape.get("tie_word_embeddings") else 2
    total = num_embeddings * shape["vocab_size"] * hidden + hidden
    adapters = config.train.lora_rank * sum(rows + columns for rows, columns in linears)
    layers = shape["num_hidden_layers"]
    return ModelSize(
        num_parameters=total + layers * per_layer, num_adapter_parameters=layers * adapters
    )


def _linears(shape: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return (inputs, outputs) of a block's linear layers: query, key, value, output, MLP."""
    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    num_heads = shape["num_attention_heads"]
    queries = num_heads * _head_dim(shape)
    keys = shape.get("num_key_value_heads", num_heads) * _head_dim(shape)
    attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    return [*attention, (hidden, wide), (hidden, wide), (wide, hidden)]


def _head_dim(shape: Mapping[str, Any]) -> int:
    return int(shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"])
