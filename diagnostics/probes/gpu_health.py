"""The health of each GPU: temperature, throttled clocks, its slot, and memory beyond repair.

launch/checks/gpus.py asks whether a GPU responds, has free memory, and has met errors. Xid
errors are only in the kernel's log, which takes root to read: `dmesg | grep -i xid`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pynvml as nv

from machine.gpus.devices import Gpu
from machine.gpus.gpu_samples import POWER_CAP, GpuSample, sample
from machine.gpus.nvml import answer_or, handles
from rundir.finding import Finding

_NEAR_C = 3  # below the temperature at which the hardware throttles itself


def check_gpus() -> list[Finding]:
    """Return a finding for each GPU that responds; none without a driver."""
    gpu_findings: list[Finding] = []
    for index, handle in handles():
        with contextlib.suppress(nv.NVMLError):
            names = nv.nvmlDeviceGetUUID(handle), nv.nvmlDeviceGetName(handle)
            state = sample(Gpu(index, *names, memory_bytes=0))
            if isinstance(state, GpuSample):
                gpu_findings.append(_judge(state, names[1], handle))
    return gpu_findings


def _judge(state: GpuSample, name: str, handle: Any) -> Finding:
    """Return a finding that fails for memory beyond repair, and warns of any slowdown."""
    index, slowed_by = state.index, [why for why in state.slowed_by or () if why != POWER_CAP]
    lanes = answer_or(None, nv.nvmlDeviceGetCurrPcieLinkWidth, handle)
    is_beyond_repair = answer_or([0, 0, 0, 0], nv.nvmlDeviceGetRemappedRows, handle)[3]
    warnings = [f"its clocks are slowed down: {', '.join(slowed_by)}"] if slowed_by else []
    warnings += [*_heat(state.temperature_c, handle), *_lanes(lanes, handle)]
    heat = "" if state.temperature_c is None else f", {state.temperature_c} °C"
    text = f"GPU {index}: {name}{heat}{'' if lanes is None else f', PCIe x{lanes}'}"
    do = f"nvidia-smi -q -i {index} -d TEMPERATURE,POWER,PERFORMANCE   # cooling, power, the slot?"
    if is_beyond_repair:
        text += ": rows of its memory are bad, and it has no more to replace them by"
        do = f"leave it out (CUDA_VISIBLE_DEVICES), have it replaced: nvidia-smi -q -i {index}"
    return Finding(
        check="gpu health",
        ok=not is_beyond_repair,
        text=text,
        warning="; ".join(warnings),
        do=do if warnings or is_beyond_repair else "",
        figures={
            "gpu": index,
            "temperature_c": state.temperature_c,
            "slowed_by": slowed_by,
            "pcie_width": lanes,
        },
    )


def _heat(celsius: int | None, handle: Any) -> Iterator[str]:
    slows = nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    limit = answer_or(None, nv.nvmlDeviceGetTemperatureThreshold, handle, slows)
    if celsius is not None and limit and celsius >= limit - _NEAR_C:
        yield f"it is at {celsius} °C, and slows down from {limit} on"


def _lanes(lanes: int | None, handle: Any) -> Iterator[str]:
    most = answer_or(None, nv.nvmlDeviceGetMaxPcieLinkWidth, handle)
    if lanes and most and lanes < most:
        yield f"PCIe runs with {lanes} of {most} lanes: is it seated well?"
