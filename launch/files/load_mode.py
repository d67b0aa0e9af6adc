"""Choice of how ranks load the weights, made once so that all ranks do the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from launch.files.checkpoint_files import Checkpoint, read_checkpoint
from machine.memory.host_memory import HostMemory
from machine.mounts import filesystem_of, is_network
from rundir.config import ADAPTER_SHAPE, RunConfig
from rundir.prepared import Loading
from rundir.units import MIB
from rundir.versions import library_versions


def choose_loading(config: RunConfig, model_path: Path) -> Loading:
    """Return the loading that `launch.load` means for the model in this folder.

    Raises UserError if its weights are needed but missing, incomplete or not only weights.
    """
    if config.launch.load == "random":
        reason = f"launch.load=random: seed {config.train.seed}"
        return Loading(load="random", reason=reason, known_as=known_as(config, ()))
    checkpoint = read_checkpoint(model_path)
    kinds = [filesystem_of(file) for file in checkpoint.files]
    kind = next(filter(is_network, kinds), kinds[0])
    loading = decide(config, checkpoint, kind, HostMemory().now().available_bytes)
    return replace(loading, known_as=known_as(config, checkpoint.files))


def known_as(config: RunConfig, files: Iterable[Path]) -> str:
    """Return a key shared by all starts that take the same memory: same weights, same loading."""
    state = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    device = [config.launch.device, os.environ.get("CUDA_VISIBLE_DEVICES")]
    parts = [
        asdict(config.model),
        config.architecture,
        config.launch.load,
        device,
        config.train.method,
        {name: getattr(config.train, name) for name in ADAPTER_SHAPE},
        state,
        library_versions(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def decide(
    config: RunConfig, checkpoint: Checkpoint, filesystem: str, available_bytes: int
) -> Loading:
    """Decide how to load the weights. `available_bytes` is the host's available memory.

    A warm start maps the weights once in any case: the decision is then for ranks that have to be
    started cold instead.
    """
    fits = checkpoint.size_bytes <= available_bytes
    files = [str(file) for file in checkpoint.files if fits]
    read_ahead, read_in = ([], files) if is_network(filesystem) else (files, [])
    advice = checkpoint.advice(config.model.dtype)
    if config.launch.load != "auto":
        load, reason = config.launch.load, f"launch.load={config.launch.load}"
    elif config.train.method == "qlora":
        load, reason = "mmap", "each rank turns the weights into four bits as it reads them"
    elif config.launch.num_ranks == 1:
        load, reason = "mmap", "there is one rank"
    elif why := _why_broadcast(checkpoint, config.model.dtype, filesystem, available_bytes):
        load, reason = "broadcast", why
    else:
        load, reason = "mmap", f"{config.model.dtype} on {filesystem}: ranks share the file's pages"
    return Loading(load=load, reason=reason, read_ahead=read_ahead, read_in=read_in, advice=advice)


def _why_broadcast(
    checkpoint: Checkpoint, dtype: str, filesystem: str, available_bytes: int
) -> str | None:
    """Return why one rank should read the weights for all, or None."""
    name, size_bytes = checkpoint.files[0].name, checkpoint.size_bytes
    if is_network(filesystem):
        return f"the model lies on {filesystem}: it is read once"
    if checkpoint.is_converted(dtype):
        if not checkpoint.is_mapped:
            return f"{name} is an old pickle, which each rank would read into memory of its own"
        held = " and ".join(sorted(checkpoint.dtypes)) or "no known type"
        return f"the weights are {held}: each rank would convert them to {dtype} for itself"
    if size_bytes > available_bytes:
        return (
            f"the weights take {size_bytes // MIB:,} MiB and {available_bytes // MIB:,} MiB are "
            "available: each rank would read them from the disk again"
        )
    return None
