"""Model and hardware FLOPs utilisation (MFU, HFU): a step's operations, and a GPU's peak.

As in Chowdhery et al. 2022, "PaLM", appendix B: a matrix costs 2 operations per weight and token in
forward and 4 in backward, attention 4 and 8 for each pair of tokens and each dimension of a head,
and nothing counts twice for being recomputed. HFU counts that as well. The differences:

* weights that are not trained get no gradient, which leaves 2 of their 4 operations in backward;
* a token attends only to those before it, in its own sample: half of length², not the whole row;
* the head counts only for tokens with a label, as the others need no logits;
* embeddings are looked up, not multiplied, and padding is not counted as tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from machine.gpus.peaks import peak_of
from train.batches.batch import Work
from train.model.build import plain_model
from train.model.recompute import recomputed_blocks

_MATRIX_DIMS = 2
_FULL = ("full_attention", "sliding_attention")
_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_experts_per_tok",
)

_TERA = 1e12


def peak_flops_per_s(device: torch.device, dtype: Literal["float32", "bfloat16"]) -> float | None:
    """Return the peak of `device` for matrices of that dtype; None if unknown, as for a CPU."""
    if device.type != "cuda":
        return None
    peak = peak_of(torch.cuda.get_device_name(device))
    if peak is None:
        return None
    teraflops = peak.bfloat16
    if dtype == "float32":
        is_exact = torch.get_float32_matmul_precision() == "highest"
        teraflops = peak.float32 if is_exact else peak.tf32
    return None if teraflops is None else teraflops * _TERA


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """Operations of forward and backward together; a multiplication and an addition are two.

    `recomputed_…` are those of a second forward of the blocks that keep no activations.
    """

    per_label: float
    per_input: float
    per_squared_length: float
    recomputed_per_input: float = 0.0
    recomputed_per_squared_length: float = 0.0

    def of(self, work: Work) -> float:
        """Return all operations that such a step needs."""
        return (
            self.per_label * work.num_labels
            + self.per_input * work.num_inputs
            + self.per_squared_length * work.squared_lengths
        )

    def computed(self, work: Work) -> float:
        """Return all operations of such a step, with those that are recomputed."""
        return (
            self.of(work)
            + self.recomputed_per_input * work.num_inputs
            + self.recomputed_per_squared_length * work.squared_lengths
        )


def model_flops(model: Any, longest: int) -> ModelFlops | None:
    """Return the operations of `model` as it is trained; samples have up to `longest` tokens.

    None if they are unknown: for experts that only some tokens pass, for layers that are neither
    matrices nor full causal attention, and for models with other parts than the text model.
    """
    plain = plain_model(model)
    pairs = _attention_flops(plain.config, longest)
    head = plain.get_output_embeddings()
    if pairs is None or not _is_matrix(head) or not _is_all_matrices(model):
        return None
    matrices = [module for module in model.modules() if _is_matrix(module) and module is not head]
    blocks = recomputed_blocks(model)
    # A third of attention's operations are those of forward.
    share = len(blocks) / plain.config.num_hidden_layers / 3
    return ModelFlops(
        per_label=_matrix_flops(head),
        per_input=sum(map(_matrix_flops, matrices)),
        per_squared_length=pairs,
        recomputed_per_input=sum(map(_flops_again, blocks)),
        recomputed_per_squared_length=pairs * share,
    )


def _is_matrix(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)  # the latter is GPT-2's, transposed


def _matrix_flops(module: Any) -> float:
    """Return operations per token: forward, input gradient, and weight gradient if there is one."""
    return float(_num_weights(module) * (6 if module.weight.requires_grad else 4))


def _flops_again(block: nn.Module) -> float:
    """Return operations per token of the second forward: it ends before a block's last product.

    Of a layer with an adapter that is lora_B's, and the layer's own too where that comes after what
    backward needs.
    """
    matrices = [module for module in block.modules() if _is_matrix(module)]
    left_out = matrices[-1:]
    layer: Any
    for layer in block.modules():
        drops = getattr(layer, "drops", None)  # of train/model/one_product.py, which imports peft
        if drops is None or matrices[-1] not in layer.modules():
            continue
        if not any(map(drops, layer.active_adapters)):
            left_out.append(layer.get_base_layer())
    return 2.0 * (sum(map(_num_weights, matrices)) - sum(map(_num_weights, left_out)))


def _num_weights(module: Any) -> int:
    """Return the weights of a layer: they may be packed (bitsandbytes), unlike their shape."""
    is_conv1d = isinstance(module, Conv1D)
    return int(module.nx * module.nf if is_conv1d else module.in_features * module.out_features)


def _is_all_matrices(model: nn.Module) -> bool:
    """Return whether every matrix of weights belongs to a counted layer, or is only looked up."""
    known = {
        id(parameter)
        for module in model.modules()
        if _is_matrix(module) or isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }
    return all(weight.dim() < _MATRIX_DIMS or id(weight) in known for weight in model.parameters())


def _attention_flops(described: Any, longest: int) -> float | None:
    """Return attention's operations per squared length.

    Scores and weighted values cost 2 each in forward and 4 each in backward, halved. None if
    attention is not simply causal in every layer, or if a token passes only some of the weights.
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
