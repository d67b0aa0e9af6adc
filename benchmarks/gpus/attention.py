"""Attention alone, forward and backward, over a packed row of samples of mixed lengths.

Each of torch's ways that is here computes the same: with a mask of tokens times tokens (efficient,
cuDNN, math), or sample by sample (torch's varlen_attn, the flash-attn package). The file is also
the program: `python -m benchmarks.gpus.attention cuda|cpu`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpus.data import mixed_lengths
from benchmarks.gpus.program import figures_of, tell
from benchmarks.gpus.run import Figures, Place

# (tokens in the row, heads, heads of keys and values, dimensions of a head) of Qwen2.5-14B, on CPU
# of something small.
_SHAPES = {"cuda": (4096, 40, 8, 128), "cpu": (128, 4, 2, 32)}
_NUM_WARM, _NUM_TIMED = 3, 10
_CLOSE = 0.05  # bfloat16 has 8 bits, and a sum of many is off by more

Attend = Callable[[Any, Any, Any], Any]


def attention(place: Place, timeout_s: float) -> Iterator[Figures]:
    """Yield milliseconds and peak memory of every way; of one that is not here, the reason."""
    yield from figures_of(__name__, [place.device], place, timeout_s)


def main(device: str) -> None:
    """Measure each way, and print what is known after each."""
    import torch

    row, heads, kv_heads, dims = _SHAPES[device]
    ends = _ends(row)
    draw = torch.Generator(device).manual_seed(0)
    made = [
        torch.randn(row, num, dims, device=device, dtype=torch.bfloat16, generator=draw)
        for num in (heads, kv_heads, kv_heads)
    ]
    tell(row_tokens=row, num_samples=len(ends))
    expected = None
    for name, attend in _ways(ends, row, device).items():
        inputs = [one.clone().requires_grad_() for one in made]
        try:
            out = attend(*inputs)
            if expected is None:
                expected = out.detach().float()
            off = float((out.detach().float() - expected).abs().max())
            took_ms, peak = _timed(attend, inputs, device)
        # A backend says in many ways that it is not for this device, shape or build.
        except Exception as error:  # noqa: BLE001
            tell(**{f"{name}_skipped": f"{type(error).__name__}: {str(error).strip()[:300]}"})
            continue
        tell(**{
            f"{name}_ms": round(took_ms, 3),
            f"{name}_gpu_peak_bytes": peak,
            f"{name}_largest_difference": off,
            f"{name}_is_the_same": off < _CLOSE,
        })  # fmt: skip


def _ends(row: int) -> list[int]:
    """Return where the samples of a full row end; the last one is cut off there."""
    ends, total = [], 0
    for length in mixed_lengths(row, row):
        total = min(row, total + length)
        ends.append(total)
        if total == row:
            break
    return ends


def _ways(ends: list[int], row: int, device: str) -> dict[str, Attend]:
    """Return the ways by name; math, the first, is what the others are compared with."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    last = torch.tensor(ends, device=device) - 1
    sample = torch.bucketize(torch.arange(row, device=device), last)
    mask = (sample[:, None] == sample).tril()

    def masked(backends: list[SDPBackend]) -> Attend:
        def attend(q: Any, k: Any, v: Any) -> Any:
            groups = q.shape[1] // k.shape[1]
            wide = (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1))
            q, k, v = (one.transpose(0, 1)[None] for one in wide)
            with sdpa_kernel(backends):
                out = scaled_dot_product_attention(q, k, v, attn_mask=mask[None, None])
            return out[0].transpose(0, 1)

        return attend

    all_but_cudnn = [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return {
        "mask_math": masked([SDPBackend.MATH]),
        "mask_default": masked([*all_but_cudnn, SDPBackend.CUDNN_ATTENTION]),
        "mask_no_cudnn": masked(all_but_cudnn),
        "mask_cudnn": masked([SDPBackend.CUDNN_ATTENTION]),
        "mask_efficient": masked([SDPBackend.EFFICIENT_ATTENTION]),
        "varlen": lambda q, k, v: _varlen(ends, q, k, v),
        "flash": lambda q, k, v: _flash(ends, q, k, v),
    }


def _bounds(ends: list[int], device: Any) -> tuple[Any, int]:
    import torch

    bounds = torch.tensor([0, *ends], dtype=torch.int32, device=device)
    return bounds, int(bounds.diff().max())


def _varlen(ends: list[int], q: Any, k: Any, v: Any) -> Any:
    """Compute it by torch's own, whose options differ by version (torch/nn/attention/varlen.py)."""
    import inspect

    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = _bounds(ends, q.device)
    if "enable_gqa" in inspect.signature(varlen_attn).parameters:  # torch 2.12 and later
        options: dict[str, Any] = {"enable_gqa": True}
    else:
        groups, options = q.shape[1] // k.shape[1], {}
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    causal = (-1, 0)  # a window of all before, and none after
    return varlen_attn(q, k, v, bounds, bounds, longest, longest, window_size=causal, **options)


def _flash(ends: list[int], q: Any, k: Any, v: Any) -> Any:
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    bounds, longest = _bounds(ends, q.device)
    return flash_attn_varlen_func(q, k, v, bounds, bounds, longest, longest, causal=True)


def _timed(attend: Attend, inputs: list[Any], device: str) -> tuple[float, int | None]:
    """Return (median milliseconds of forward and backward, peak bytes above what was held)."""
    import torch

    is_gpu = device == "cuda"
    held = 0
    if is_gpu:
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    took = []
    for _ in range(_NUM_WARM + _NUM_TIMED):
        if is_gpu:
            torch.cuda.synchronize()
        begun = time.monotonic()
        attend(*inputs).float().sum().backward()
        if is_gpu:
            torch.cuda.synchronize()
        took.append((time.monotonic() - begun) * 1e3)
    peak = torch.cuda.max_memory_allocated() - held if is_gpu else None
    return statistics.median(took[_NUM_WARM:]), peak


if __name__ == "__main__":
    main(sys.argv[1])
