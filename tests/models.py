"""Model folders for tests: the one of `tiny`, sound or broken."""

from __future__ import annotations

from pathlib import Path

from launch.resolve import resolve


def tiny_model(folder: Path) -> Path:
    """The model of `tiny` as it is made for a run."""
    from train.make_checkpoint import make_checkpoint

    make_checkpoint(resolve("tiny", (), {})[0], folder)
    return folder


def with_nan(folder: Path, name: str) -> Path:
    """The same with a NaN in the tensor of that name."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    return folder
