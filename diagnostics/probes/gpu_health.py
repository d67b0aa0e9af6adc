"""The health of each GPU: temperature, throttled clocks, its slot, and memory beyond repair.

launch/checks/gpus.py asks whether a GPU responds, has free memory, and has met errors. Xid
errors are only in the kernel's log, which takes root to read: `dmesg | grep -i xid`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from machine.gpus.gpu_samples import faults_in
from machine.gpus.nvml import answer_or, open_driver
from rundir.finding import Finding

_NEAR_C = 3  # below the temperature at which the hardware throttles itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of one GPU. What its driver does not report is None, or 0 in a bit mask."""

    index: int
    name: str
    temperature_c: int | None
    slowdown_c: int | None  # the hardware throttles itself from here on
    slowed_by: tuple[str, ...]
    pcie_width: int | None
    most_pcie_width: int | None
    remap_failed: bool


def check_gpus() -> list[Finding]:
    """Return a finding for each GPU that responds; none without a driver."""
    import pynvml

    gpu_findings: list[Finding] = []
    with contextlib.suppress(pynvml.NVMLError):
        open_driver()
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):  # preflight reports a lost GPU
                gpu_findings.append(judge(_health(index)))
    return gpu_findings


def judge(health: Health) -> Finding:
    """Return a finding that fails for memory beyond repair, and warns of any slowdown."""
    index, warnings = health.index, list(_slow(health))
    heat = "" if health.temperature_c is None else f", {health.temperature_c} °C"
    width = "" if health.pcie_width is None else f", PCIe x{health.pcie_width}"
    text = f"GPU {index}: {health.name}{heat}{width}"
    do = f"nvidia-smi -q -i {index} -d TEMPERATURE,POWER,PERFORMANCE   # cooling, power, the slot?"
    if health.remap_failed:
        text += ": rows of its memory are bad, and it has no more to replace them by"
        do = f"leave it out (CUDA_VISIBLE_DEVICES), have it replaced: nvidia-smi -q -i {index}"
    return Finding(
        check="gpu health",
        ok=not health.remap_failed,
        text=text,
        warning="; ".join(warnings),
        do=do if warnings or health.remap_failed else "",
        figures={
            "gpu": index,
            "temperature_c": health.temperature_c,
            "slowed_by": list(health.slowed_by),
            "pcie_width": health.pcie_width,
        },
    )


def _slow(health: Health) -> Iterator[str]:
    if health.slowed_by:
        yield f"its clocks are slowed down: {', '.join(health.slowed_by)}"
    temperature, limit = health.temperature_c, health.slowdown_c
    if temperature is not None and limit and temperature >= limit - _NEAR_C:
        yield f"it is at {temperature} °C, and slows down from {limit} on"
    width, most = health.pcie_width, health.most_pcie_width
    if width and most and width < most:
        yield f"PCIe runs with {width} of {most} lanes: is it seated well?"


def _health(index: int) -> Health:
    import pynvml as nv

    handle = nv.nvmlDeviceGetHandleByIndex(index)
    reasons = answer_or(0, nv.nvmlDeviceGetCurrentClocksEventReasons, handle)
    return Health(
        index=index,
        name=nv.nvmlDeviceGetName(handle),
        temperature_c=_temperature(handle),
        slowdown_c=answer_or(
            None,
            nv.nvmlDeviceGetTemperatureThreshold,
            handle,
            nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
        ),
        slowed_by=faults_in(reasons),
        pcie_width=answer_or(None, nv.nvmlDeviceGetCurrPcieLinkWidth, handle),
        most_pcie_width=answer_or(None, nv.nvmlDeviceGetMaxPcieLinkWidth, handle),
        remap_failed=bool(answer_or([0, 0, 0, 0], nv.nvmlDeviceGetRemappedRows, handle)[3]),
    )


def _temperature(handle: Any) -> int | None:
    import pynvml as nv

    celsius: int | None = answer_or(
        None, nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU
    )
    return celsius
