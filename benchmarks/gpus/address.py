"""The address space that CUDA reserves: VmPeak of a fresh process, which is what RLIMIT_AS limits.

The file is also the program of that process: `python -m benchmarks.gpus.address cuda|cpu`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpus.program import figures_of, tell
from benchmarks.gpus.run import Figures, Place
from machine.gpus.allocator import EXPANDABLE, NAME, OLD_NAME
from machine.memory.address_space import predict

_ALLOCATED_BYTES = 1024**3
_ONE_THREAD = "1"
_WIDTH, _NUM_LAYERS, _NUM_HEADS, _LENGTH = 1024, 4, 8, 512


def address_space(place: Place, timeout_s: float, *, expandable: bool) -> Iterator[Figures]:
    """Measure VmPeak after each thing that a rank does before and in its first step.

    `limit_bytes` is the limit that a rank would get on this machine. Raises FailedError.
    """
    conf = EXPANDABLE if expandable else EXPANDABLE.replace("True", "False")
    env = {NAME: conf, OLD_NAME: None, "OMP_NUM_THREADS": _ONE_THREAD}
    gpus = [] if place.gpu is None else [place.gpu.memory_bytes]
    yield {"limit_bytes": predict([], _ONE_THREAD, gpus).most_bytes}
    yield from figures_of(__name__, [place.device], place, timeout_s, env)


def vm_peak_bytes() -> int:
    """Return VmPeak of this process, as reported by the kernel."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("VmPeak:"))
    return int(line.split()[1]) * 1024


def main(device: str) -> None:
    """Measure step by step, and print what is known after each."""
    import torch

    tell(torch_bytes=vm_peak_bytes())
    if device == "cuda":
        torch.cuda.synchronize()  # the first call, which creates a context
    tell(device_bytes=vm_peak_bytes())
    held = torch.zeros(_ALLOCATED_BYTES, dtype=torch.uint8, device=device)
    tell(allocated_bytes=vm_peak_bytes())
    assert held.nbytes == _ALLOCATED_BYTES
    _communicate(device)
    tell(group_bytes=vm_peak_bytes())
    _step(device)
    tell(step_bytes=vm_peak_bytes())
    os._exit(0)  # what libraries do at exit is irrelevant


def _communicate(device: str) -> None:
    """Join a process group of one rank, NCCL's or gloo's, and send a tensor through it."""
    import torch
    import torch.distributed as dist

    group: Any = dist  # torch's types leave the stores out
    store = group.TCPStore("127.0.0.1", 0, 1, is_master=True)
    is_gpu = device == "cuda"
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=store,
        rank=0,
        world_size=1,
        device_id=torch.device("cuda", 0) if is_gpu else None,
    )
    dist.all_reduce(torch.ones(_WIDTH, device=device))
    if is_gpu:
        torch.cuda.synchronize()


def _step(device: str) -> None:
    """Train one step under DDP: products of matrices, attention, backward, a fused AdamW."""
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention
    from torch.nn.parallel import DistributedDataParallel

    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(_NUM_LAYERS)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device, torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.randn(1, _LENGTH, _WIDTH, device=device, dtype=torch.bfloat16)
    heads = model(inputs).view(1, _LENGTH, _NUM_HEADS, -1).transpose(1, 2)
    loss: Any = scaled_dot_product_attention(heads, heads, heads, is_causal=True).float().sum()
    loss.backward()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
