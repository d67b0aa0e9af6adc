"""Adapters for all who are compared to begin from: random, and the same each time.

A program: `python -m benchmarks.gpus.adapter MODEL FOLDER`. The model's weights are not read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_RANK, _ALPHA = 16, 32


def main(model_path: Path, folder: Path) -> None:
    """Write the adapters as peft does: all matrices of a block, rank 16."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    make: Any = AutoModelForCausalLM  # its methods have no types
    with torch.device("meta"):
        model = make.from_config(AutoConfig.from_pretrained(model_path))
    adapters = LoraConfig(
        r=_RANK, lora_alpha=_ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    adapted = get_peft_model(model, adapters)
    draw = torch.Generator().manual_seed(0)
    made = {}
    for name, one in adapted.named_parameters():
        if one.requires_grad:
            # As peft begins: A as a layer of that many inputs would, B zero.
            scale = one.shape[-1] ** -0.5 if ".lora_A." in name else 0.0
            made[name.replace(".default.", ".")] = (
                torch.empty(one.shape).uniform_(-1, 1, generator=draw) * scale
            )
    folder.mkdir(parents=True, exist_ok=True)
    adapters.inference_mode = True
    adapted.peft_config["default"].save_pretrained(str(folder))
    save_file(made, folder / "adapter_model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
