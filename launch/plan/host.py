"""The host memory of all processes of a run, phase by phase.

Anonymous memory is what has to be there. Mapped weights are pages of a file, in memory once however
many ranks read them, and released when something else needs the room; they are listed separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launch.files.checkpoint_files import read_checkpoint
from launch.files.load_mode import choose_loading
from launch.plan.question import Device
from machine.memory.address_space import weight_files
from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.footprint import Footprint
from rundir.units import MIB

# Measured as in docs/benchmarks.md (Start-up beside other launchers), anonymous memory there: 8
# warm ranks 561 MB, of which 12.0 for each rank; 8 cold ones 2,362 MB. A zygote: 265 MiB, in its
# MEM:POST-IMPORT line.
_LAUNCHER_BYTES = 190 * MIB  # launch and agent
_IMPORTS_BYTES = 265 * MIB  # a process that has imported torch, transformers and the trainer
_FORK_BYTES = 12 * MIB  # private memory of a forked rank until the ranks have met
_TRAINING_BYTES = 40 * MIB  # additional from there on: autograd, kernels, buffers of gloo
# A process with CUDA and NCCL up has host memory of its own for them: an estimate, between 200 MiB
# and 1 GiB. Not measured on a GPU yet.
_CUDA_BYTES = 512 * MIB
# transformers' max_shard_size: safetensors holds one file's tensors in host memory when they come
# from a GPU; those on the CPU are written from where they are.
_SHARD_BYTES = 50 * 10**9
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a run, with the anonymous memory of all its processes and the files mapped.

    Up to `slack_bytes` more may be lost to fragmentation.
    """

    name: str
    anonymous_bytes: int
    mapped_bytes: int
    slack_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The way in which the weights come into a process that loads them."""

    load: str  # mmap, broadcast or random
    is_converted: bool  # each process that loads them has a copy of its own
    reading_bytes: int  # in addition, while it loads
    note: str


def weights_of(config: RunConfig, folder: Path | None) -> Weights:
    """Return how the weights will be loaded, by the files if present, else as complete safetensors.

    Damaged files are for the run to refuse; here they are taken to be good ones.
    """
    load, in_four_bits = config.launch.load, config.train.method == "qlora"
    note = "random weights" if load == "random" else "not fetched yet: taken to be safetensors"
    try:
        if load != "random" and folder is not None and weight_files(folder):
            checkpoint, loading = read_checkpoint(folder), choose_loading(config, folder)
            return Weights(
                load=loading.load,
                is_converted=in_four_bits or checkpoint.is_converted(config.model.dtype),
                reading_bytes=0 if checkpoint.is_mapped else checkpoint.size_bytes,
                note=loading.reason,
            )
    except UserError as error:
        note, in_four_bits = str(error.args[0]), False
    load = "mmap" if load == "auto" else load
    return Weights(load=load, is_converted=in_four_bits, reading_bytes=0, note=note)


def host_phases(
    footprint: Footprint, config: RunConfig, device: Device, weights: Weights
) -> tuple[Phase, ...]:
    """Return the phases of a run of `launch.num_ranks` ranks, in order."""
    num_ranks, on_cpu = config.launch.num_ranks, device == "cpu"
    is_cold, is_warm = config.launch.start == "cold", config.launch.start == "warm"
    is_mapped = not weights.is_converted and weights.load != "random"
    loaded, trained = _on_cpu(footprint, config, weights) if on_cpu else (0, 0)
    # On CPU, the C library may keep blocks of less than 32 MiB: twice what is in use was seen
    # (`./start.sh tiny --set train.micro_batch_size=256 --set train.global_batch_size=1024`).
    activations = num_ranks * (footprint.activations_bytes + footprint.logits_bytes)
    slack = activations if on_cpu else 0
    imports = _LAUNCHER_BYTES + (num_ranks if is_cold else 1) * _IMPORTS_BYTES
    forks = 0 if is_cold else num_ranks * _FORK_BYTES
    zygote = _loader_bytes(footprint, config, weights) if is_warm else 0
    model = imports + (zygote if is_warm else forks + loaded) + weights.reading_bytes
    up = imports + zygote + forks + loaded
    training = imports + zygote + forks + num_ranks * _TRAINING_BYTES
    training += trained if on_cpu else num_ranks * _CUDA_BYTES
    saving = training - (activations if on_cpu else 0)
    saving += _export_bytes(footprint, config, device, is_shared=is_warm or is_mapped)
    mapped = footprint.weights_bytes if is_mapped else 0
    return (
        Phase("imports", imports, 0),
        Phase("model", model, mapped),
        Phase("ranks up", up, mapped),
        Phase("training", training, mapped, slack),
        Phase("saving", saving, mapped, slack),
    )


def _export_bytes(
    footprint: Footprint, config: RunConfig, device: Device, *, is_shared: bool
) -> int:
    """Return the extra memory for writing the trained model; merging copies shared weights."""
    if config.train.method != "full" and not config.train.merge_adapters:
        return 0
    merged_bytes = _frozen_bytes(footprint, config)  # merging writes to all of them
    if config.train.method == "qlora":  # as they are in the files (train/model/export.py)
        return merged_bytes
    if device == "cpu":
        return merged_bytes if is_shared else 0
    return min(footprint.weights_bytes, _SHARD_BYTES)


def _frozen_bytes(footprint: Footprint, config: RunConfig) -> int:
    """Return the bytes of the weights that are not trained, as they are in the model's files."""
    num_frozen = footprint.num_parameters - footprint.num_trainable
    return num_frozen * _ITEM_BYTES[config.model.dtype]


def _loader_bytes(footprint: Footprint, config: RunConfig, weights: Weights) -> int:
    """Return the private memory of a process that loads the model, before it trains.

    Adapters are created, not mapped.
    """
    if weights.is_converted:
        return footprint.weights_bytes
    has_adapters = config.train.method != "full"
    return footprint.weights_bytes - _frozen_bytes(footprint, config) if has_adapters else 0


def _on_cpu(footprint: Footprint, config: RunConfig, weights: Weights) -> tuple[int, int]:
    """Return (loaded, training): the memory of all ranks' models where the device is the host."""
    num_ranks, peak = config.launch.num_ranks, footprint.peak_bytes
    frozen_bytes = _frozen_bytes(footprint, config)
    if config.launch.start == "warm":  # only trained weights are written to, and then copied
        return 0, num_ranks * (peak - frozen_bytes)
    shared = 0 if weights.is_converted else frozen_bytes
    reads = (_loader_bytes(footprint, config, weights), peak - shared)
    whole = (footprint.weights_bytes, peak)
    readers = {"mmap": num_ranks, "broadcast": 1, "random": 0}[weights.load]
    loaded, trained = (
        readers * of_reader + (num_ranks - readers) * of_other
        for of_reader, of_other in zip(reads, whole, strict=True)
    )
    return loaded, trained
