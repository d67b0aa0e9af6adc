"""How fast a GPU can multiply matrices at most, as its maker says: the denominator of MFU."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import torch

_TERA = 1e12


class Peak(NamedTuple):
    """Dense TFLOP/s, without structured sparsity, sums kept in float32; None where there is none.

    `tf32` is float32 in matrices rounded to 10 bits, which torch only uses when told to.
    """

    bfloat16: float | None
    tf32: float | None
    float32: float


# What the name that CUDA gives has in it, whole words, the most specific first. Data sheets of
# NVIDIA, which for most list figures with sparsity that are twice those here:
# "H100 Tensor Core GPU" (2023; SXM, PCIe and NVL), "H200 Tensor Core GPU" (2024), "HGX platform"
# and "GB200 NVL72" (2025; a GPU's share), "A100 80GB" (2021), "A30", "A40", "A10", "L40S", "L40",
# "L4", "RTX A6000", "RTX 6000 Ada", "V100" (2020), "T4"; and the white papers on the architectures
# of GA102 (2021), Ada (2023) and RTX Blackwell (2025), in the columns with FP32 accumulation.
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
    ("A10", Peak(125, 62.5, 31.2)),
    ("L40S", Peak(362.05, 183, 91.6)),
    ("L40", Peak(181.05, 90.5, 90.5)),
    ("L4", Peak(121, 60, 30.3)),
    ("RTX A6000", Peak(154.8, 77.4, 38.7)),
    ("RTX 6000 Ada", Peak(364.2, 182.1, 91.1)),
    ("RTX 5090", Peak(209.5, 104.8, 104.8)),
    ("RTX 4090", Peak(165.2, 82.6, 82.6)),
    ("RTX 3090", Peak(71, 35.6, 35.6)),
    ("V100 SXM2", Peak(None, None, 15.7)),
    ("V100 PCIE", Peak(None, None, 14)),
    ("T4", Peak(None, None, 8.1)),
)
# Of the same name, and slower, or faster, by a share that is not known here.
_OTHERS = re.compile(r"\b(Ti|SUPER|D|Laptop|Max-Q|MIG)\b", re.IGNORECASE)


def peak_of(name: str) -> Peak | None:
    """The peak of a GPU that CUDA names so ("NVIDIA H100 80GB HBM3"); None of one not known."""
    words = re.sub(r"[-_]", " ", name)
    if _OTHERS.search(words):
        return None
    for known, peak in _PEAKS:
        if re.search(rf"\b{known}\b", words, re.IGNORECASE):
            return peak
    return None


def peak_flops_per_s(device: torch.device, dtype: Literal["float32", "bfloat16"]) -> float | None:
    """The peak of `device` for matrices of that type; None where it is not known, as of a CPU."""
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
