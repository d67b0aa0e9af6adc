"""The driver beside the build of torch: CPU-only where there are GPUs, or too new for the driver.

Rules: NVIDIA's CUDA Compatibility guide. Within a major version of CUDA any driver of it will do
(minor version compatibility); a driver older than that cannot serve a build, a newer one can. A
forward compatibility package makes libcuda, which is what is asked, the newer one.
"""

from __future__ import annotations

import shlex
import sys

from launch import nvml
from launch.nvml import DriverState, GpuState
from launch.preflight.ground import Ground, error, fine, warning
from launch.preflight.torch_build import TorchBuild, torch_build
from rundir.finding import Finding

NAME = "driver"
_WHEELS = "https://download.pytorch.org/whl"
_BLACKWELL, _TURING = (10, 0), (7, 5)
_FIRST_FOR_BLACKWELL = (12, 8)  # CUDA 12.8 release notes: sm_100 and sm_120 are new
_LAST_BEFORE_TURING = 12  # CUDA 13 release notes: support ends for Maxwell, Pascal and Volta
_NEEDS_DRIVER = {11: 450, 12: 525, 13: 580}  # CUDA Compatibility, table 1


def check(ground: Ground) -> list[Finding]:
    """One finding: whether this torch can use these GPUs through this driver."""
    if ground.placement.device != "cuda":
        fault = nvml.driver_fault() if ground.config.launch.device == "auto" else None
        if fault is None:
            return []
        return [warning(NAME, f"{fault.text}; so this run is on CPU", fault.do)]
    driver, build = ground.driver(), torch_build()
    if driver is None or build is None or build.hip:
        return []
    uuids = {gpu.uuid for gpu in ground.placement.gpus}
    return [judge(build, driver, [state for state in driver.gpus if state.uuid in uuids])]


def judge(build: TorchBuild, driver: DriverState, gpus: list[GpuState]) -> Finding:
    """Whether `build` can use `gpus` through `driver`."""
    install = _install(build, driver, gpus)
    if driver.cuda is None:
        return error(
            NAME,
            f"the driver is {driver.version}, but its libcuda.so.1 is not here: this "
            "container may look at its GPUs, and not compute on them",
            "start it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    has = f"the driver {driver.version} serves CUDA {_text(driver.cuda)}"
    if build.cuda is None:
        return error(
            NAME,
            f"torch {build.version} is built for CPU only; the run is to be on {len(gpus)} "
            f"NVIDIA GPUs, and {has}",
            install,
        )
    needs = f"torch {build.version} is built for CUDA {_text(build.cuda)}"
    if driver.cuda[0] < build.cuda[0]:
        least = _NEEDS_DRIVER.get(build.cuda[0])
        newer = f"a driver from {least} on" if least else "a newer driver"
        return error(NAME, f"{needs}; {has}: it is too old", f"{newer}, or: {install}")
    for gpu in gpus:
        if gpu.capability >= _BLACKWELL and build.cuda < _FIRST_FOR_BLACKWELL:
            limit = f"needs a build for CUDA {_text(_FIRST_FOR_BLACKWELL)} or newer"
        elif (0, 0) < gpu.capability < _TURING and build.cuda[0] > _LAST_BEFORE_TURING:
            limit = f"needs a build for CUDA {_LAST_BEFORE_TURING}"
        else:
            continue
        what = f"GPU {gpu.index} (compute capability {_text(gpu.capability)})"
        return error(NAME, f"{needs}; {what} {limit}", install)
    return fine(NAME, f"{needs}; {has}", driver=driver.version, cuda=_text(driver.cuda))


def _install(build: TorchBuild, driver: DriverState, gpus: list[GpuState]) -> str:
    """The command that brings a build that this driver and these GPUs can take."""
    is_new = bool(driver.cuda) and driver.cuda[0] > _LAST_BEFORE_TURING  # type: ignore[index]
    has_old = any((0, 0) < gpu.capability < _TURING for gpu in gpus)
    has_blackwell = any(gpu.capability >= _BLACKWELL for gpu in gpus)
    flavour = "cu130" if is_new and not has_old else "cu129" if has_blackwell else "cu126"
    wanted = f"torch=={build.version.partition('+')[0]}+{flavour}"
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install {wanted} --extra-index-url {_WHEELS}/{flavour}"


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
