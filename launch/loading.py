"""How the weights get into the ranks: decided here once, so that all ranks do the same."""

from __future__ import annotations

from pathlib import Path

from launch.checkpoint_files import Checkpoint, read_checkpoint
from launch.host_memory import HostMemory
from launch.memory import MIB
from launch.mounts import filesystem_of, is_network
from rundir.config import RunConfig
from rundir.prepared import Loading


def choose_loading(config: RunConfig, model_path: Path) -> Loading:
    """What `launch.load` comes to for the model in this folder.

    Raises UserError when its weights are needed and not there, not whole, or not only weights.
    """
    if config.launch.load == "random":
        return Loading(load="random", reason=f"launch.load=random: seed {config.train.seed}")
    checkpoint = read_checkpoint(model_path)
    kinds = [filesystem_of(file) for file in checkpoint.files]
    kind = next(filter(is_network, kinds), kinds[0])
    return decide(config, checkpoint, kind, HostMemory().now().available_bytes)


def decide(
    config: RunConfig, checkpoint: Checkpoint, filesystem: str, available_bytes: int
) -> Loading:
    """The rule itself. `available_bytes` is what the host can still give.

    A warm start maps the weights once, whatever comes out here: it is then for ranks that have to
    be started cold instead.
    """
    fits = checkpoint.size_bytes <= available_bytes
    read_ahead = [str(file) for file in checkpoint.files if fits and not is_network(filesystem)]
    advice = checkpoint.advice(config.model.dtype)
    if config.launch.load != "auto":
        load, reason = config.launch.load, f"launch.load={config.launch.load}"
    elif config.launch.num_ranks == 1:
        load, reason = "mmap", "there is one rank"
    elif why := _why_broadcast(checkpoint, config.model.dtype, filesystem, available_bytes):
        load, reason = "broadcast", why
    else:
        load, reason = "mmap", f"{config.model.dtype} on {filesystem}: ranks share the file's pages"
    return Loading(load=load, reason=reason, read_ahead=read_ahead, advice=advice)


def _why_broadcast(
    checkpoint: Checkpoint, dtype: str, filesystem: str, available_bytes: int
) -> str | None:
    """Why one rank had better read for all, or None."""
    name, size_bytes = checkpoint.files[0].name, checkpoint.size_bytes
    if is_network(filesystem):
        return f"the model lies on {filesystem}: it is read once"
    if not checkpoint.is_mapped:
        return f"{name} is an old pickle, which each rank would read into memory of its own"
    if checkpoint.dtypes != {dtype}:
        held = " and ".join(sorted(checkpoint.dtypes)) or "no known type"
        return f"the weights are {held}: each rank would convert them to {dtype} for itself"
    if size_bytes > available_bytes:
        return (
            f"the weights take {size_bytes // MIB:,} MiB and {available_bytes // MIB:,} MiB are "
            "available: each rank would read them from the disk again"
        )
    return None
