"""State of the NVIDIA driver and its GPUs, queried through NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pynvml as nv

T = TypeVar("T")

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"  # PCI IDs: the vendor; the class of display controllers


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A process with memory on a GPU; the driver may not report how much."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """The current state of a GPU. `fault` is why it does not answer; then the rest is unknown."""

    index: int
    uuid: str = ""
    fault: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    used_bytes: int = 0  # excluding what the driver reserves for itself
    capability: tuple[int, int] = (0, 0)
    compute_mode: Literal["default", "exclusive", "prohibited"] = "default"
    is_mig: bool = False
    num_uncorrected: int = 0  # ECC errors since the driver was loaded
    needs_reset: bool = False  # a row remapping of its memory is pending
    users: tuple[GpuUser, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """The driver and all its GPUs. `cuda` is the newest CUDA version that libcuda supports."""

    version: str
    cuda: tuple[int, int] | None  # None: there is no libcuda here
    gpus: tuple[GpuState, ...]
    parts: tuple[GpuState, ...] = ()  # the instances of those that are cut into some (MIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A reason why installed GPUs cannot be used, and the command to run next."""

    text: str
    do: str


def driver_state() -> DriverState | None:
    """Return the driver's current state, or None if it does not answer (see `driver_fault`)."""
    with contextlib.suppress(nv.NVMLError):
        open_driver()
        gpus = tuple(_gpu_state(index) for index in range(nv.nvmlDeviceGetCount()))
        return DriverState(
            version=nv.nvmlSystemGetDriverVersion(),
            cuda=_cuda_version(),
            gpus=gpus,
            parts=tuple(part for gpu in gpus if gpu.is_mig for part in _part_states(gpu)),
        )
    return None


def driver_fault() -> Fault | None:
    """Return why NVML does not answer although there are GPUs.

    Returns None if it does answer, or if there are no GPUs.
    """
    try:
        open_driver()
    except nv.NVMLError as error:
        num_gpus = num_pci_gpus()
        if error.value == nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return Fault(
                text="the NVIDIA driver in the kernel is older than its libraries, which were "
                f"updated while it was loaded ({error})",
                do="sudo reboot   # loads the new one; in a container: restart it, then the host",
            )
        if num_gpus == 0:
            return None
        there = f"{num_gpus} NVIDIA GPU{'s' if num_gpus > 1 else ''}"
        if error.value == nv.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Fault(
                text=f"this machine has {there}, but its driver is not visible from here",
                do="nvidia-smi   # on the host; start a container with `docker run --gpus all`",
            )
        return Fault(
            text=f"this machine has {there}, but the driver does not answer: {error}",
            do="sudo modprobe nvidia && nvidia-smi; what it met: `sudo dmesg | grep -i nvrm`",
        )
    return None


def num_pci_gpus() -> int:
    """Return the number of NVIDIA display controllers on the PCI bus, with or without a driver."""
    num_gpus = 0
    for device in _PCI.glob("*"):
        with contextlib.suppress(OSError):
            is_nvidia = (device / "vendor").read_text().strip() == _NVIDIA
            num_gpus += is_nvidia and (device / "class").read_text().startswith(_DISPLAY_CLASS)
    return num_gpus


def open_driver() -> None:
    """Initialise NVML. Raises pynvml.NVMLError.

    It is never shut down: then a driver without persistence mode would put every GPU to sleep, and
    the next caller would wait for seconds.
    """
    nv.nvmlInit()


def handles() -> Iterator[tuple[int, Any]]:
    """Yield number and handle of each GPU that answers, in PCI bus order; none without a driver."""
    with contextlib.suppress(nv.NVMLError):
        open_driver()
        for index in range(nv.nvmlDeviceGetCount()):
            with contextlib.suppress(nv.NVMLError):  # a lost GPU; preflight reports it
                yield index, nv.nvmlDeviceGetHandleByIndex(index)


def _cuda_version() -> tuple[int, int] | None:
    """Return libcuda's version: that of a forward-compatibility package if one is in use."""
    try:
        number = nv.nvmlSystemGetCudaDriverVersion_v2()
    except nv.NVMLError as error:
        if error.value == nv.NVML_ERROR_LIBRARY_NOT_FOUND:
            return None
        number = nv.nvmlSystemGetCudaDriverVersion()
    return number // 1000, number % 1000 // 10


def _gpu_state(index: int) -> GpuState:
    try:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        memory = memory_of(handle)
        return GpuState(
            index=index,
            uuid=nv.nvmlDeviceGetUUID(handle),
            total_bytes=int(memory.total),
            free_bytes=int(memory.free),
            used_bytes=int(memory.used),
            capability=answer_or((0, 0), nv.nvmlDeviceGetCudaComputeCapability, handle),
            compute_mode=_compute_mode(answer_or(0, nv.nvmlDeviceGetComputeMode, handle)),
            is_mig=bool(answer_or([0, 0], nv.nvmlDeviceGetMigMode, handle)[0]),
            num_uncorrected=_uncorrected(handle),
            needs_reset=bool(answer_or([0, 0, 0, 0], nv.nvmlDeviceGetRemappedRows, handle)[2]),
            users=_users(handle),
        )
    except nv.NVMLError as error:  # it fell off the bus, or needs a reset
        return GpuState(index=index, fault=str(error))


def _part_states(gpu: GpuState) -> Iterator[GpuState]:
    """Yield the states of the instances of a GPU, with its compute capability."""
    with contextlib.suppress(nv.NVMLError):
        handle = nv.nvmlDeviceGetHandleByIndex(gpu.index)
        for part in mig_handles(handle):
            memory = memory_of(part)
            yield GpuState(
                index=gpu.index,
                uuid=nv.nvmlDeviceGetUUID(part),
                total_bytes=int(memory.total),
                free_bytes=int(memory.free),
                used_bytes=int(memory.used),
                capability=gpu.capability,
                users=_users(part),
            )


def mig_handles(gpu: Any) -> Iterator[Any]:
    """Yield the handles of the instances of a GPU (MIG); none of a whole one."""
    if not answer_or([0, 0], nv.nvmlDeviceGetMigMode, gpu)[0]:
        return
    for number in range(nv.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        with contextlib.suppress(nv.NVMLError_NotFound):  # not every number has an instance
            yield nv.nvmlDeviceGetMigDeviceHandleByIndex(gpu, number)


def memory_of(handle: Any) -> Any:
    """Return total, free and used bytes; drivers before 510 count their own share as used."""
    try:
        return nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2)
    except nv.NVMLError:
        return nv.nvmlDeviceGetMemoryInfo(handle)


def _compute_mode(number: int) -> Literal["default", "exclusive", "prohibited"]:
    if number == nv.NVML_COMPUTEMODE_PROHIBITED:
        return "prohibited"
    return "default" if number == nv.NVML_COMPUTEMODE_DEFAULT else "exclusive"


def _uncorrected(handle: Any) -> int:
    kind, since = nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nv.NVML_VOLATILE_ECC
    return answer_or(0, nv.nvmlDeviceGetTotalEccErrors, handle, kind, since)


def _users(handle: Any) -> tuple[GpuUser, ...]:
    """Return the processes with memory on a GPU, each once."""
    memory_by_pid: dict[int, int | None] = {}
    for kind in ("Graphics", "MPSCompute", "Compute"):
        # pynvml's own choice of version raises an error of another kind before driver 510.
        newest, older = (
            getattr(nv, f"nvmlDeviceGet{kind}RunningProcesses_v{version}") for version in (3, 2)
        )
        nobody: list[Any] = []
        for process in answer_or(None, newest, handle) or answer_or(nobody, older, handle):
            memory_by_pid[process.pid] = process.usedGpuMemory
    return tuple(GpuUser(pid=pid, used_bytes=used) for pid, used in memory_by_pid.items())


def answer_or(otherwise: T, ask: Callable[..., Any], *args: Any) -> T:
    """Return NVML's answer, or `otherwise` if this GPU or driver does not support the query."""
    refusals = (
        nv.NVML_ERROR_NOT_SUPPORTED,
        nv.NVML_ERROR_FUNCTION_NOT_FOUND,
        nv.NVML_ERROR_NO_PERMISSION,
        nv.NVML_ERROR_INVALID_ARGUMENT,
    )
    try:
        answer: T = ask(*args)
    except nv.NVMLError as error:
        if error.value not in refusals:
            raise
        return otherwise
    return answer
