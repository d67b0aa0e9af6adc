"""What a model has to compute for a step: the numerator of model FLOPs utilisation (MFU).

As in Chowdhery et al. 2022, "PaLM", appendix B: a matrix costs 2 operations a weight and token in
forward and 4 in backward, attention 4 and 8 for each pair of tokens and each dimension of a head,
and nothing counts twice for being recomputed. Where this differs from there:

* weights that are not trained get no gradient, which leaves 2 of their 4 operations in backward;
* a token attends only to those before it, in its own sample: half of length², not all of the row;
* the head counts only for tokens with a label, as the others need no logits;
* embeddings are looked up, not multiplied, and padding is no token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from train.batch import Work
from train.model import plain_model

_MATRIX_DIMS = 2
_FULL = ("full_attention", "sliding_attention")
_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_experts_per_tok",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """Operations of forward and backward together, a multiplication and an addition being two."""

    per_label: float
    per_input: float
    per_squared_length: float

    def of(self, work: Work) -> float:
        """All that such a step needs."""
        return (
            self.per_label * work.num_labels
            + self.per_input * work.num_inputs
            + self.per_squared_length * work.squared_lengths
        )


def model_flops(model: Any, longest: int) -> ModelFlops | None:
    """What `model` needs as it is trained; samples have up to `longest` tokens.

    None for one of which it cannot be told: with experts that only some tokens pass, with layers
    that are no matrices and no full causal attention, or with other parts than the text model.
    """
    plain = plain_model(model)
    pairs = _attention_flops(plain.config, longest)
    head = plain.get_output_embeddings()
    if pairs is None or not _is_matrix(head) or not _is_all_matrices(model):
        return None
    matrices = [one for one in model.modules() if _is_matrix(one) and one is not head]
    return ModelFlops(
        per_label=_matrix_flops(head),
        per_input=sum(map(_matrix_flops, matrices)),
        per_squared_length=pairs,
    )


def _is_matrix(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)  # the latter is GPT-2's, the other way round


def _matrix_flops(module: Any) -> float:
    """For a token: forward, the gradient of its input, and that of the weights if they have one.

    Weights may be packed (bitsandbytes), so their shape does not tell their number.
    """
    is_conv1d = isinstance(module, Conv1D)
    num_weights = module.nx * module.nf if is_conv1d else module.in_features * module.out_features
    return float(num_weights * (6 if module.weight.requires_grad else 4))


def _is_all_matrices(model: nn.Module) -> bool:
    """Whether every matrix of weights belongs to a layer that is counted, or is only looked up."""
    known = {
        id(parameter)
        for module in model.modules()
        if _is_matrix(module) or isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return all(one.dim() < _MATRIX_DIMS or id(one) in known for one in model.parameters())


def _attention_flops(described: Any, longest: int) -> float | None:
    """For a squared length: scores and weighted values, of forward 2, of backward 4 each, halved.

    None where attention is not simply causal in every layer, or where a token passes only some of
    the weights.
    """
    if described.get_text_config() is not described:
        return None
    if any(getattr(described, name, None) not in (None, 0, 1) for name in _EXPERTS):
        return None
    if any(kind not in _FULL for kind in getattr(described, "layer_types", None) or ()):
        return None
    window = getattr(described, "sliding_window", None)
    num_layers = getattr(described, "num_hidden_layers", None)
    num_heads = getattr(described, "num_attention_heads", None)
    if not num_layers or not num_heads or (window and window < longest):
        return None
    if getattr(described, "v_head_dim", None):  # values are not as wide as keys
        return None
    head_dim = getattr(described, "head_dim", None) or described.hidden_size // num_heads
    return 6.0 * num_layers * num_heads * head_dim
