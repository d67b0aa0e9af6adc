"""The large model of the benchmarks: 1.2 GB of random bfloat16 weights, shaped as Qwen3-0.6B."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rundir.config import ModelConfig, RunConfig
from rundir.paths import cache_folder
from rundir.seal import is_sealed

_ARCHITECTURE = {  # Qwen/Qwen3-0.6B's config.json
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40960, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip


def large_checkpoint() -> Path:
    """Its folder in the cache, made on first use, in a process of its own."""
    folder = cache_folder() / "models" / "benchmark-1.2GB"
    if not is_sealed(folder):
        subprocess.run([sys.executable, "-P", "-m", __name__, str(folder)], check=True)
    return folder


def main() -> None:
    """Make it in the folder that is named."""
    from train.make_checkpoint import make_checkpoint

    config = RunConfig(
        profile="benchmark", model=ModelConfig(dtype="bfloat16"), architecture=_ARCHITECTURE
    )
    make_checkpoint(config, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
