"""Model FLOPs utilisation (MFU): the operations a model needs for a step, and a GPU's peak.

As in Chowdhery et al. 2022, "PaLM", appendix B: a matrix costs 2 operations per weight and token in
forward and 4 in backward, attention 4 and 8 for each pair of tokens and each dimension of a head,
and nothing counts twice for being recomputed. The differences:

* weights that are not trained get no gradient, which leaves 2 of their 4 operations in backward;
* a token attends only to those before it, in its own sample: half of length², not the whole row;
* the head counts only for tokens with a label, as the others need no logits;
* embeddings are looked up, not multiplied, and padding is not counted as tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from train.batches.batch import Work
from train.model.build import plain_model

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


class Peak(NamedTuple):
    """Dense TFLOP/s, without structured sparsity, sums kept in float32; None if not supported.

    `tf32` is float32 in matrices rounded to 10 bits, which torch only uses when told to.
    """

    bfloat16: float | None
    tf32: float | None
    float32: float


# Whole words that occur in CUDA's name for the GPU, the most specific first. From NVIDIA's data
# sheets, most of which list figures with sparsity that are twice those here: "H100 Tensor Core GPU"
# (2023; SXM, PCIe and NVL), "H200 Tensor Core GPU" (2024), "HGX platform" and "GB200 NVL72" (2025;
# per GPU), "A100 80GB" (2021), "A30", "A40", "A10", "L40S", "L40", "L4", "RTX A6000", "RTX 6000
# Ada", "V100" (2020), "T4"; and from the white papers on the GA102 (2021), Ada (2023) and RTX
# Blackwell (2025) architectures, the columns with FP32 accumulation. A10G:
# https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf.
# RTX PRO 6000: the white paper "NVIDIA RTX Blackwell PRO GPU architecture" (2025); of the server's
# https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/ has only float32,
# and the rest stands to it as on the workstation's, which has the same chip. AMD:
# https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html and …/mi325x.html.
_PEAKS: tuple[tuple[str, Peak], ...] = (
    ("GB300", Peak(2500, 1250, 80)),
    ("B300", Peak(2250, 1125, 75)),
    ("GB200", Peak(2500, 1250, 80)),
    ("B200", Peak(2250, 1125, 75)),
    ("GH200", Peak(989.5, 494.5, 67)),
    ("H200 NVL", Peak(835.5, 417.5, 60)),
    ("H200", Peak(989.5, 494.5, 67)),
    ("H100 NVL", Peak(835.5, 417.5, 60)),
    ("H100 PCIe", Peak(756.5, 378, 51)),
    ("H100", Peak(989.5, 494.5, 67)),
    ("H800 PCIe", Peak(756.5, 378, 51)),
    ("H800", Peak(989.5, 494.5, 67)),
    ("H20", Peak(148, 74, 44)),
    ("A100", Peak(312, 156, 19.5)),
    ("A800", Peak(312, 156, 19.5)),
    ("A40", Peak(149.7, 74.8, 37.4)),
    ("A30", Peak(165, 82, 10.3)),
    ("A10G", Peak(70, 35, 35)),
    ("A10", Peak(125, 62.5, 31.2)),
    ("L40S", Peak(362.05, 183, 91.6)),
    ("L40", Peak(181.05, 90.5, 90.5)),
    ("L4", Peak(121, 60, 30.3)),
    ("RTX A6000", Peak(154.8, 77.4, 38.7)),
    ("RTX 6000 Ada", Peak(364.2, 182.1, 91.1)),
    ("RTX PRO 6000 Blackwell Workstation", Peak(503.8, 251.9, 126)),
    ("RTX PRO 6000 Blackwell Server", Peak(480, 240, 120)),
    ("RTX 5090", Peak(209.5, 104.8, 104.8)),
    ("RTX 4090", Peak(165.2, 82.6, 82.6)),
    ("RTX 3090", Peak(71, 35.6, 35.6)),
    ("V100 SXM2", Peak(None, None, 15.7)),
    ("V100 PCIE", Peak(None, None, 14)),
    ("T4", Peak(None, None, 8.1)),
    ("MI300X", Peak(1307.4, 653.7, 163.4)),
    ("MI325X", Peak(1307.4, 653.7, 163.4)),
)
# Variants with the same name that are slower or faster by an unknown share.
_OTHERS = re.compile(r"\b(Ti|SUPER|D|Laptop|Max-Q|MIG)\b", re.IGNORECASE)


def peak_of(name: str) -> Peak | None:
    """Return the peak of a GPU with that CUDA name ("NVIDIA H100 80GB HBM3"); None if unknown."""
    words = re.sub(r"[-_]", " ", name)
    if _OTHERS.search(words):
        return None
    for known, peak in _PEAKS:
        if re.search(rf"\b{known}\b", words, re.IGNORECASE):
            return peak
    return None


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
    """Operations of forward and backward together; a multiplication and an addition are two."""

    per_label: float
    per_input: float
    per_squared_length: float

    def of(self, work: Work) -> float:
        """Return all operations that such a step needs."""
        return (
            self.per_label * work.num_labels
            + self.per_input * work.num_inputs
            + self.per_squared_length * work.squared_lengths
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
    return ModelFlops(
        per_label=_matrix_flops(head),
        per_input=sum(map(_matrix_flops, matrices)),
        per_squared_length=pairs,
    )


def _is_matrix(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | Conv1D)  # the latter is GPT-2's, transposed


def _matrix_flops(module: Any) -> float:
    """Return operations per token: forward, input gradient, and weight gradient if there is one.

    Weights may be packed (bitsandbytes), so their shape does not tell their number.
    """
    is_conv1d = isinstance(module, Conv1D)
    num_weights = module.nx * module.nf if is_conv1d else module.in_features * module.out_features
    return float(num_weights * (6 if module.weight.requires_grad else 4))


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
