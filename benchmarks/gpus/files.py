"""A model of a real shape as real safetensors: random values, written once, in shards.

The file is also the program that writes them: `python -m benchmarks.gpus.files FOLDER cuda|cpu`.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpus.data import model_folder
from benchmarks.gpus.program import figures_of, tell
from benchmarks.gpus.run import Figures, Place, SkippedError
from launch.config.profiles import load_profile
from rundir.units import size_text

_MARKER = "written.json"
_INDEX = "model.safetensors.index.json"
_BYTES_PER_WEIGHT = 2
_LEFT_FREE_BYTES = 2 * 1024**3
_SHARD_BYTES = 4.6 * 1024**3  # as Hugging Face's, 5 GB at most; a thread holds two copies
_NUM_THREADS = 4
_STD = 0.02  # initializer_range of Qwen2's config


def folder_of(place: Place) -> Path:
    """Return where the files are, or will be."""
    return place.folder / ("model-14b" if place.device == "cuda" else "model-tiny")


def is_written(place: Place) -> bool:
    """Return whether the files are complete."""
    return (folder_of(place) / _MARKER).exists()


def write_files(place: Place, timeout_s: float) -> Iterator[Figures]:
    """Write the files unless they are complete; yield their bytes, and the seconds that it took.

    Raises SkippedError with the figures if the disk is too small.
    """
    folder = folder_of(place)
    if not is_written(place):
        architecture = load_profile("14b" if place.device == "cuda" else "tiny")["architecture"]
        model_folder(folder, architecture)
        needed = num_parameters(architecture) * _BYTES_PER_WEIGHT + _LEFT_FREE_BYTES
        there = sum(file.stat().st_size for file in folder.iterdir())
        free = shutil.disk_usage(folder).free + there
        if free < needed:
            raise SkippedError(
                f"the files take {size_text(needed)}, and {folder} has {size_text(free)} free"
            )
        yield from figures_of(__name__, [str(folder), place.device], place, timeout_s)
    marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    yield {f"files_{key}": value for key, value in marker.items()}


def num_parameters(architecture: dict[str, Any]) -> int:
    """Return the weights of a model, which is built without memory."""
    return sum(one.numel() for one in _tensors(architecture).values())


def _tensors(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of such a model by name, on the meta device; a tied one is left out."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    described = CONFIG_MAPPING[architecture["model_type"]](
        **{key: value for key, value in architecture.items() if key != "model_type"}
    )
    make: Any = AutoModelForCausalLM  # its methods have no types
    with torch.device("meta"):
        model = make.from_config(described, dtype=torch.bfloat16)
    return dict(model.named_parameters())  # names each once, by its first name


def _shards(tensors: dict[str, Any]) -> list[list[str]]:
    """Divide the tensors, in their order, into shards of about the same size."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * _BYTES_PER_WEIGHT
        if size and size + num_bytes > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += num_bytes
    return shards


def _write_shard(file: Path, names: list[str], tensors: dict[str, Any], seed: int) -> int:
    """Write random values, made on the tensors' device; return the number of bytes."""
    import torch
    from safetensors.torch import save_file

    device = torch.device(sys.argv[2])
    draw = torch.Generator(device).manual_seed(seed)
    values = {}
    for name in names:
        value = torch.empty(tensors[name].shape, dtype=torch.bfloat16, device=device)
        if name.endswith("norm.weight"):
            value.fill_(1.0)
        elif name.endswith("bias"):
            value.zero_()
        else:
            value.normal_(0.0, _STD, generator=draw)
        values[name] = value.cpu()
    save_file(values, file, metadata={"format": "pt"})
    return sum(value.nbytes for value in values.values())


def main(folder: Path) -> None:
    """Write all shards, the index of them, and at the end the marker."""
    begun = time.monotonic()
    architecture = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = _tensors(architecture)
    shards = _shards(tensors)
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        sizes = pool.map(
            lambda i: _write_shard(folder / files[i], shards[i], tensors, i), range(len(shards))
        )
        total = 0
        for size in sizes:
            total += size
            tell(files_so_far_bytes=total)
    where = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / _INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    took = {"bytes": total, "num": len(files), "write_s": round(time.monotonic() - begun, 1)}
    (folder / _MARKER).write_text(json.dumps(took), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
