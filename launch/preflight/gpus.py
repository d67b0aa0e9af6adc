"""The GPUs of this run: do they answer, is their memory free, and who holds it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil

from launch.console import clock
from launch.devices import Gpu
from launch.memory import MIB
from launch.nvml import GpuState, GpuUser
from launch.preflight.ground import Ground, error, fine, warning
from launch.preflight.sizes import model_size
from launch.run_processes import run_folder_of
from rundir.finding import Finding

NAME = "gpu"
_MUCH_BYTES = 1024 * MIB  # a desktop takes less
_LONGEST_COMMAND = 60


def check(ground: Ground) -> list[Finding]:
    """A finding for each GPU with a fault, without room, or not as a run needs it."""
    chosen, driver = ground.placement.gpus, ground.driver()
    if not chosen or driver is None:
        return []
    now = {state.uuid: state for state in driver.gpus}
    size = model_size(ground.config, ground.sources)
    needed_bytes = size.loaded_bytes(ground.config) if size else 0
    lost = [state for state in driver.gpus if state.fault]
    found = [
        warning(
            NAME,
            f"GPU {state.index} does not answer, and is left out: {state.fault}",
            f"sudo nvidia-smi --gpu-reset -i {state.index}   # or reboot",
            gpu=state.index,
        )
        for state in lost
    ]
    for gpu in chosen:
        found += judge(gpu, now.get(gpu.uuid), needed_bytes, len(chosen))
    if found:
        return found
    free = min(now[gpu.uuid].free_bytes for gpu in chosen) // MIB
    return [fine(NAME, f"{len(chosen)} GPUs, at least {free:,} MiB free on each", free_mib=free)]


def judge(gpu: Gpu, state: GpuState | None, needed_bytes: int, num_gpus: int) -> Iterator[Finding]:
    """What is wrong with one GPU that is to be used; `needed_bytes` is what a rank surely takes."""
    if state is None:
        text = f"GPU {gpu.index} ({gpu.name}) has stopped answering"
        yield error(NAME, text, f"sudo nvidia-smi --gpu-reset -i {gpu.index}   # or reboot")
        return
    yield from _mode(state, num_gpus)
    yield from _memory(gpu, state, needed_bytes)
    if state.num_uncorrected or state.needs_reset:
        text = f"GPU {gpu.index} has had {state.num_uncorrected} uncorrectable memory errors"
        what = " and waits for a reset to replace bad rows" if state.needs_reset else ""
        yield warning(
            NAME,
            text + what,
            f"sudo nvidia-smi --gpu-reset -i {gpu.index}, and see `nvidia-smi -q -d ECC`",
            gpu=gpu.index,
            num_uncorrected=state.num_uncorrected,
        )


def _mode(state: GpuState, num_gpus: int) -> Iterator[Finding]:
    index, do = state.index, f"sudo nvidia-smi -i {state.index} -c DEFAULT"
    if state.compute_mode == "prohibited":
        yield error(NAME, f"GPU {index} is in compute mode PROHIBITED: no program may use it", do)
    elif state.compute_mode == "exclusive" and state.users:
        pids = ", ".join(str(user.pid) for user in state.users)
        yield error(
            NAME,
            f"GPU {index} is in compute mode EXCLUSIVE_PROCESS, and process {pids} is on it",
            f"{do}, or end that process",
            gpu=index,
        )
    if state.is_mig:
        text = f"GPU {index} is cut into parts (MIG): a rank gets one of them"
        do = f"sudo nvidia-smi -i {index} -mig 0"
        if num_gpus > 1:
            yield error(NAME, f"{text}, and NCCL cannot join them", do, gpu=index)
        else:
            yield warning(NAME, text, do, gpu=index)


def _memory(gpu: Gpu, state: GpuState, needed_bytes: int) -> Iterator[Finding]:
    lacks = state.free_bytes < needed_bytes <= state.total_bytes
    if not lacks and state.used_bytes < _MUCH_BYTES:
        return
    free, total = f"{state.free_bytes // MIB:,}", f"{state.total_bytes // MIB:,}"
    holders = "; ".join(_holder(user) for user in state.users)
    by = holders or "no process that can be seen from here: one in another container, or a dead one"
    text = f"GPU {gpu.index} ({gpu.name}): {free} of {total} MiB are free"
    if lacks:
        text += f", and the weights alone take {needed_bytes // MIB:,}"
    yield (error if lacks else warning)(
        NAME,
        f"{text}; held by {by}",
        _way_out(gpu, state.users),
        gpu=gpu.index,
        free_mib=state.free_bytes // MIB,
        total_mib=state.total_bytes // MIB,
        needed_mib=needed_bytes // MIB,
    )


def _holder(user: GpuUser) -> str:
    """Whose process it is, what it is, how old and how large."""
    used = "an unknown amount" if user.used_bytes is None else f"{user.used_bytes // MIB:,} MiB"
    try:
        process = psutil.Process(user.pid)
        command = " ".join(process.cmdline())[:_LONGEST_COMMAND] or process.name()
        about = f"{process.username()}, {command}, {clock(_age_s(process))}"
    except psutil.Error:  # of the host, seen from within a container
        about = "not to be seen from here"
    run = run_folder_of(user.pid)
    return f"pid {user.pid} ({about}{f', run {run.name}' if run else ''}) with {used}"


def _way_out(gpu: Gpu, users: tuple[GpuUser, ...]) -> str:
    runs = {run.name for user in users if (run := run_folder_of(user.pid))}
    if runs:
        return "; ".join(f"./airlock stop {run}" for run in sorted(runs))
    own = [str(user.pid) for user in users if _uid(user.pid) == os.getuid()]
    if own:
        return f"kill {' '.join(own)}   # yours; or leave out GPU {gpu.index}: CUDA_VISIBLE_DEVICES"
    if users:
        return f"ask its owner, or leave out GPU {gpu.index}: CUDA_VISIBLE_DEVICES=…"
    return f"sudo fuser -v /dev/nvidia{gpu.index}   # on the host"


def _uid(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).uids().real)
    except psutil.Error:
        return None


def _age_s(process: psutil.Process) -> float:
    return max(0.0, time.time() - process.create_time())
