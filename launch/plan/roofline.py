"""The least time of a step by the roofline of its GPU: an estimate, told before anything runs.

No kernel is faster than its operations at the GPU's peak, or its bytes at the memory's bandwidth
(Williams et al. 2009). Transfers between GPUs, which overlap with backward, are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from machine.gpus.peaks import peak_of
from rundir.config import RunConfig
from rundir.footprint import Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The least seconds of a step whose rows are all full, and so the most tokens/s of a GPU."""

    step_s: float
    tokens_per_s: float


def roofline_of(
    config: RunConfig, footprint: Footprint, num_ranks: int, gpu: str
) -> Roofline | None:
    """Return the roofline of a step on GPUs of that name; None if their peak is not known."""
    peak = peak_of(gpu)
    teraflops = peak and (peak.bfloat16 if config.model.dtype == "bfloat16" else peak.float32)
    if not peak or not teraflops or not footprint.matrix_flops:
        return None
    bytes_per_s = peak.memory * 1e9
    num_rows = math.ceil(config.train.global_batch_size / num_ranks)
    matrices_s = footprint.matrix_flops / (teraflops * 1e12)
    micro_batch_s = (
        max(matrices_s, footprint.matrix_bytes / bytes_per_s) + footprint.other_bytes / bytes_per_s
    )
    num_micro_batches = num_rows / min(num_rows, config.train.micro_batch_size)
    step_s = num_micro_batches * micro_batch_s + footprint.update_bytes / bytes_per_s
    return Roofline(step_s=step_s, tokens_per_s=num_rows * config.data.max_seq_length / step_s)
