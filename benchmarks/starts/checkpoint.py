"""The models of the benchmarks: random weights in the shape of Qwen3-0.6B, 1.2 GB of bfloat16."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

from rundir.atomic import new_folder
from rundir.config import ModelConfig, RunConfig
from rundir.paths import cache_folder
from rundir.seal import is_sealed

_ARCHITECTURE = {  # Qwen/Qwen3-0.6B's config.json
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}


def large_checkpoint() -> Path:
    """Return its folder in the cache; it is made on first use, in a process of its own."""
    return _made("benchmark-1.2GB")


def pickled_checkpoint() -> Path:
    """Return the same for a smaller model: 0.9 GB of float32, in torch's old pickle format.

    It cannot be mapped: whoever loads it as bfloat16 temporarily holds a whole copy in addition.
    """
    return _made("benchmark-pickle-0.9GB")


def _made(name: str) -> Path:
    folder = cache_folder() / "models" / name
    if not is_sealed(folder):
        subprocess.run([sys.executable, "-P", "-m", __name__, str(folder)], check=True)
    return folder


def main() -> None:
    """Make the checkpoint in the named folder."""
    folder = Path(sys.argv[1])
    if "pickle" in folder.name:
        _make_pickled(folder)
    else:
        _make(folder, "bfloat16", {})


def _make(folder: Path, dtype: Literal["bfloat16", "float32"], changes: dict[str, int]) -> None:
    from train.model.make_checkpoint import make_checkpoint

    architecture = _ARCHITECTURE | changes
    config = RunConfig(
        profile="benchmark", model=ModelConfig(dtype=dtype), architecture=architecture
    )
    make_checkpoint(config, folder)


def _make_pickled(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    with new_folder(folder) as temporary:
        _make(temporary / "mapped", "float32", {"vocab_size": 32_000, "num_hidden_layers": 12})
        for file in (temporary / "mapped").iterdir():
            file.rename(temporary / file.name)
        weights = load_file(temporary / "model.safetensors")
        torch.save(weights, temporary / "pytorch_model.bin", _use_new_zipfile_serialization=False)
        (temporary / "model.safetensors").unlink()
        (temporary / "mapped").rmdir()


if __name__ == "__main__":
    main()
