"""Checks of this run's GPUs and their driver: do they answer, is their memory free, who holds it.

The driver is compared with the build of torch by NVIDIA's CUDA Compatibility guide: within a major
version of CUDA any driver of that version will do (minor version compatibility); an older driver
cannot serve a build, a newer one can. A forward compatibility package makes libcuda, which is what
is queried, the newer one.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator

import psutil

from launch.checks.context import Context, error, fine, warning
from launch.checks.sizes import model_size
from machine.gpus import nvml
from machine.gpus.cuda_driver import NEEDS_DRIVER
from machine.gpus.devices import Gpu
from machine.gpus.nvml import DriverState, GpuState, GpuUser
from machine.gpus.torch_build import ROCM_DO, TorchBuild, torch_build
from machine.processes.runs import run_folder_of
from rundir.finding import Finding
from rundir.units import MIB, clock_text

GPU = "gpu"
_MUCH_BYTES = 1024 * MIB  # a desktop takes less
_LONGEST_COMMAND = 60


DRIVER = "driver"
_WHEELS = "https://download.pytorch.org/whl"
_BLACKWELL, _TURING = (10, 0), (7, 5)
_FIRST_FOR_BLACKWELL = (12, 8)  # CUDA 12.8 release notes: sm_100 and sm_120 are new
_LAST_BEFORE_TURING = 12  # CUDA 13 release notes: support ends for Maxwell, Pascal and Volta


def check_driver(context: Context) -> list[Finding]:
    """Return at most one finding: whether this torch can use these GPUs through this driver."""
    build = torch_build()
    if context.placement.device != "cuda":
        return [] if context.config.launch.device == "cpu" else list(_why_cpu(build))
    driver = context.driver()
    if driver is None or build is None:
        return []
    uuids = {gpu.uuid for gpu in context.placement.gpus}
    states = [state for state in (*driver.gpus, *driver.parts) if state.uuid in uuids]
    return [judge_driver(build, driver, states)]


def _why_cpu(build: TorchBuild | None) -> Iterator[Finding]:
    fault = nvml.driver_fault()
    if fault is not None:
        yield warning(DRIVER, f"{fault.text}; so this run is on CPU", fault.do)
    elif build is not None and build.of_rocm:
        yield warning(DRIVER, f"{build.of_rocm}; so this run is on CPU", ROCM_DO)


def judge_driver(build: TorchBuild, driver: DriverState, gpus: list[GpuState]) -> Finding:
    """Return a finding on whether `build` can use `gpus` through `driver`."""
    install = _install(build, driver, gpus)
    if driver.cuda is None:
        return error(
            DRIVER,
            f"the driver is {driver.version}, but its libcuda.so.1 is not here: this "
            "container may look at its GPUs, and not compute on them",
            "start it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    has = f"the driver {driver.version} serves CUDA {_version_text(driver.cuda)}"
    if build.cuda is None:
        what = f"ROCm {build.hip}" if build.hip else "CPU only"
        return error(
            DRIVER,
            f"torch {build.version} is built for {what}; the run is to be on {len(gpus)} "
            f"NVIDIA GPU{'s' if len(gpus) != 1 else ''}, and {has}",
            install,
        )
    needs = f"torch {build.version} is built for CUDA {_version_text(build.cuda)}"
    if driver.cuda[0] < build.cuda[0]:
        least = NEEDS_DRIVER.get(build.cuda[0])
        newer = f"a driver from {least} on" if least else "a newer driver"
        return error(DRIVER, f"{needs}; {has}: it is too old", f"{newer}, or: {install}")
    for gpu in gpus:
        if gpu.capability >= _BLACKWELL and build.cuda < _FIRST_FOR_BLACKWELL:
            limit = f"needs a build for CUDA {_version_text(_FIRST_FOR_BLACKWELL)} or newer"
        elif (0, 0) < gpu.capability < _TURING and build.cuda[0] > _LAST_BEFORE_TURING:
            limit = f"needs a build for CUDA {_LAST_BEFORE_TURING}"
        else:
            continue
        what = f"GPU {gpu.index} (compute capability {_version_text(gpu.capability)})"
        return error(DRIVER, f"{needs}; {what} {limit}", install)
    return fine(DRIVER, f"{needs}; {has}", driver=driver.version, cuda=_version_text(driver.cuda))


def _install(build: TorchBuild, driver: DriverState, gpus: list[GpuState]) -> str:
    """Return the command that installs a build for this driver and these GPUs."""
    is_new = bool(driver.cuda) and driver.cuda[0] > _LAST_BEFORE_TURING  # type: ignore[index]
    has_old = any((0, 0) < gpu.capability < _TURING for gpu in gpus)
    has_blackwell = any(gpu.capability >= _BLACKWELL for gpu in gpus)
    flavour = "cu130" if is_new and not has_old else "cu129" if has_blackwell else "cu126"
    wanted = f"torch=={build.version.partition('+')[0]}+{flavour}"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install {wanted} --extra-index-url {_WHEELS}/{flavour}"


def _version_text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_gpus(context: Context) -> list[Finding]:
    """Return a finding for each GPU that has a fault, no room, or an unsuitable mode."""
    chosen, driver = context.placement.gpus, context.driver()
    if not chosen or driver is None:
        return []
    now = {state.uuid: state for state in (*driver.gpus, *driver.parts)}
    size = model_size(context.config, context.sources)
    needed_bytes = size.loaded_bytes(context.config) if size else 0
    lost = [state for state in driver.gpus if state.fault]
    findings = [
        warning(
            GPU,
            f"GPU {state.index} does not answer, and is left out: {state.fault}",
            f"sudo nvidia-smi --gpu-reset -i {state.index}   # or reboot",
            gpu=state.index,
        )
        for state in lost
    ]
    for gpu in chosen:
        findings += judge_gpu(gpu, now.get(gpu.uuid), needed_bytes, len(chosen))
    if findings:
        return findings
    free = min(now[gpu.uuid].free_bytes for gpu in chosen) // MIB
    return [fine(GPU, f"{len(chosen)} GPUs, at least {free:,} MiB free on each", free_mib=free)]


def judge_gpu(
    gpu: Gpu, state: GpuState | None, needed_bytes: int, num_gpus: int
) -> Iterator[Finding]:
    """Yield what is wrong with a GPU that is to be used; a rank needs at least `needed_bytes`."""
    if state is None:
        text = f"GPU {gpu.index} ({gpu.name}) has stopped answering"
        yield error(GPU, text, f"sudo nvidia-smi --gpu-reset -i {gpu.index}   # or reboot")
        return
    yield from _mode(state, num_gpus)
    yield from _memory(gpu, state, needed_bytes)
    if state.num_uncorrected or state.needs_reset:
        text = f"GPU {gpu.index} has had {state.num_uncorrected} uncorrectable memory errors"
        what = " and waits for a reset to replace bad rows" if state.needs_reset else ""
        yield warning(
            GPU,
            text + what,
            f"sudo nvidia-smi --gpu-reset -i {gpu.index}, and see `nvidia-smi -q -d ECC`",
            gpu=gpu.index,
            num_uncorrected=state.num_uncorrected,
        )


def _mode(state: GpuState, num_gpus: int) -> Iterator[Finding]:
    index, do = state.index, f"sudo nvidia-smi -i {state.index} -c DEFAULT"
    if state.compute_mode == "prohibited":
        yield error(GPU, f"GPU {index} is in compute mode PROHIBITED: no program may use it", do)
    elif state.compute_mode == "exclusive" and state.users:
        pids = ", ".join(str(user.pid) for user in state.users)
        yield error(
            GPU,
            f"GPU {index} is in compute mode EXCLUSIVE_PROCESS, and process {pids} is on it",
            f"{do}, or end that process",
            gpu=index,
        )
    if state.is_mig:
        text = f"GPU {index} is cut into parts (MIG): a rank gets one of them"
        do = f"sudo nvidia-smi -i {index} -mig 0"
        if num_gpus > 1:
            yield error(GPU, f"{text}, and NCCL cannot join them", do, gpu=index)
        else:
            example = "CUDA_VISIBLE_DEVICES=MIG-…   # names one, as `nvidia-smi -L` does; or: "
            yield warning(GPU, text, example + do, gpu=index)


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
        GPU,
        f"{text}; held by {by}",
        _way_out(gpu, state.users),
        gpu=gpu.index,
        free_mib=state.free_bytes // MIB,
        total_mib=state.total_bytes // MIB,
        needed_mib=needed_bytes // MIB,
    )


def _holder(user: GpuUser) -> str:
    """Return the owner, command, age and memory of a process."""
    used = "an unknown amount" if user.used_bytes is None else f"{user.used_bytes // MIB:,} MiB"
    try:
        process = psutil.Process(user.pid)
        command = " ".join(process.cmdline())[:_LONGEST_COMMAND] or process.name()
        about = f"{process.username()}, {command}, {clock_text(_age_s(process))}"
    except psutil.Error:  # a process of the host, seen from within a container
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
