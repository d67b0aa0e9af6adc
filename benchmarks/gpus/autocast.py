"""One LoRA step as peft's defaults compute it, in float32 adapters, and the same under autocast.

The file is also the program: `python -m benchmarks.gpus.autocast JSON`, of which the keys are
architecture, device, row_tokens, turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from benchmarks.gpus.program import figures_of, tell
from benchmarks.gpus.run import Figures, Place
from launch.config.profiles import load_profile

_RANK, _ALPHA = 16, 32
_NUM_WARM = 1
_WAYS = ("fp32", "autocast")


def autocast(place: Place, timeout_s: float) -> Iterator[Figures]:
    """Measure seconds, peak memory and loss of a step in both ways. Raises FailedError."""
    is_gpu = place.device == "cuda"
    architecture = load_profile("14b" if is_gpu else "tiny")["architecture"]
    told = {
        "architecture": architecture,
        "device": place.device,
        "row_tokens": 4096 if is_gpu else 64,
        "turns": 3,
    }
    yield from figures_of(__name__, [json.dumps(told)], place, timeout_s)


def main(told: dict[str, Any]) -> None:
    """Build the model once, then take both ways in turns."""
    import torch

    device, row_tokens = torch.device(told["device"]), told["row_tokens"]
    model = _model(told["architecture"], device)
    draw = torch.Generator(device).manual_seed(0)
    tokens = torch.randint(0, 256, (1, row_tokens), device=device, generator=draw)
    seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(_NUM_WARM + told["turns"]):
        for way in _WAYS:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            took, loss, norm = _step(model, tokens, way)
            seconds[way].append(took)
            peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
            middle = statistics.median(seconds[way][_NUM_WARM:] or seconds[way])
            tell(**{
                f"{way}_step_s": round(middle, 4),
                f"{way}_tokens_per_s": round(row_tokens / middle, 1),
                f"{way}_gpu_peak_bytes": peak,
                f"{way}_loss": loss,
                f"{way}_grad_norm": norm,
            })  # fmt: skip


def _model(architecture: dict[str, Any], device: Any) -> Any:
    """Return a frozen bfloat16 model with float32 adapters, as peft makes them, checkpointed."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    described = CONFIG_MAPPING[architecture["model_type"]](
        **{key: value for key, value in architecture.items() if key != "model_type"}
    )
    make: Any = AutoModelForCausalLM  # its methods have no types
    with device:
        model = make.from_config(described, dtype=torch.bfloat16)
    model = model.to(device)
    model.config.use_cache = False
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    model.enable_input_require_grads()
    adapters = LoraConfig(
        r=_RANK, lora_alpha=_ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    adapted = get_peft_model(model, adapters).train()
    dtypes = {str(one.dtype) for one in adapted.parameters() if one.requires_grad}
    assert dtypes == {"torch.float32"}, f"peft's adapters are {dtypes}"
    return adapted


def _step(model: Any, tokens: Any, way: str) -> tuple[float, float, float]:
    """Return (seconds, loss, gradient norm) of forward and backward."""
    import torch

    model.zero_grad(set_to_none=True)
    kind = tokens.device.type
    _wait(kind)
    begun = time.monotonic()
    with torch.autocast(kind, torch.bfloat16) if way == "autocast" else nullcontext():
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    _wait(kind)
    took = time.monotonic() - begun
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    return took, float(loss), float(torch.nn.utils.get_total_norm(gradients))


def _wait(kind: str) -> None:
    import torch

    if kind == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
