"""footprint.json: the device memory of one rank's model and training step, found by tracing.

`train.trace` writes it, in a process of its own, as it needs torch; `launch.plan` reads
it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rundir.atomic import write_text

WORK = ("matrix_flops", "matrix_bytes", "other_bytes", "update_bytes")
Moment = Literal["warm-up", "forward", "loss", "backward", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one rank in one configuration; the parts are those at the peak, and add up to it.

    Memory that torch's allocator does not hand out (the GPU's context, NCCL's buffers) is not
    included.
    """

    num_parameters: int
    num_trainable: int
    weights_bytes: int  # parameters and buffers, trained or not
    gradients_bytes: int
    optimizer_bytes: int  # the optimizer's states; if sharded, those of the rank that has most
    ddp_bytes: int  # buckets that DDP keeps beside the gradients; 0 with one rank
    activations_bytes: int  # tensors saved for backward, and the temporaries of one layer
    logits_bytes: int  # of the head and the loss, gradients of both included
    peak_bytes: int
    peak_moment: Moment
    num_blocks: int = 0  # that can be recomputed in backward, one as large as another; 0: not known
    block_bytes: int = 0  # of the activations, what each of these adds
    # The largest micro-batch, and the update of the weights (train/trace/work.py).
    matrix_flops: int = 0  # of products of matrices and attention, recomputed ones included
    matrix_bytes: int = 0  # read and written by these
    other_bytes: int = 0  # by all other kernels
    update_bytes: int = 0


def write_footprints(path: Path, footprints: list[Footprint]) -> None:
    """Write the answers of one call, in the order of its questions. Raises OSError."""
    write_text(path, json.dumps([asdict(footprint) for footprint in footprints], indent=1) + "\n")


def read_footprints(path: Path) -> list[Footprint]:
    """Read the footprints in a file. Raises OSError; ValueError or TypeError if invalid."""
    return [Footprint(**table) for table in json.loads(path.read_text(encoding="utf-8"))]
