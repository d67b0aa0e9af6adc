"""Samples of a run's GPUs while it runs: memory, utilisation, temperature, power, slowed clocks.

A driver can take seconds to answer, or never answer again once a GPU has fallen off the bus. So a
thread asks it, and whoever wants samples takes those that there are, without waiting.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml as nv

from machine.gpus import nvml
from machine.gpus.devices import Gpu

EVERY_S = 5.0  # the events of a GPU are then some 6 MB a day
_SILENT_S = 30.0  # a call that takes longer is told; without persistence mode one takes seconds
POWER_CAP = "power cap"  # as usual under full load; each of the others is a fault
_MILLI = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """The state of a GPU at one moment. What it does not report, as a part of one, is None."""

    index: int
    used_bytes: int
    total_bytes: int
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    slowed_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """A GPU that does not answer any more, or the whole driver (index None), and what it said."""

    index: int | None
    why: str


def faults_in(reasons: int) -> tuple[str, ...]:
    """Return the faults among the reasons for lower clocks, a bit mask (nvml.h)."""
    known = {
        nv.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
        nv.nvmlClocksEventReasonHwThermalSlowdown: "too hot (hardware)",
        nv.nvmlClocksEventReasonSwThermalSlowdown: "too hot (driver)",
        nv.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    }
    return tuple(text for bit, text in known.items() if reasons & bit)


def sample(gpu: Gpu) -> GpuSample | Silence:
    """Return the state of `gpu` now, or why it does not answer; may take long."""
    try:
        nvml.open_driver()
        handle = nv.nvmlDeviceGetHandleByUUID(gpu.uuid)
        memory = nvml.memory_of(handle)
    except nv.NVMLError as error:
        return Silence(gpu.index, str(error))
    rates = _answer_or_none(nv.nvmlDeviceGetUtilizationRates, handle)
    power_mw = _answer_or_none(nv.nvmlDeviceGetPowerUsage, handle)
    limit_mw = _answer_or_none(nv.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuSample(
        index=gpu.index,
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        utilization_percent=None if rates is None else int(rates.gpu),
        temperature_c=_answer_or_none(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
        power_w=None if power_mw is None else round(power_mw * _MILLI, 1),
        power_limit_w=None if limit_mw is None else round(limit_mw * _MILLI, 1),
        slowed_by=_slowed_by(handle),
    )


def _slowed_by(handle: Any) -> tuple[str, ...] | None:
    reasons = _answer_or_none(nv.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # its name before driver 535
        reasons = _answer_or_none(nv.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if reasons is None:
        return None
    is_capped = reasons & nv.nvmlClocksEventReasonSwPowerCap
    return (*((POWER_CAP,) if is_capped else ()), *faults_in(reasons))


def _answer_or_none(ask: Callable[..., Any], *args: Any) -> Any:
    """Return NVML's answer, or None whatever it refuses with: the other figures are still good."""
    with contextlib.suppress(nv.NVMLError):
        return ask(*args)
    return None


class GpuSampler:
    """A thread that samples `gpus` every so often, from the first call of `new` to `stop`."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        *,
        every_s: float = EVERY_S,
        silent_s: float = _SILENT_S,
        ask: Callable[[Gpu], GpuSample | Silence] = sample,
    ) -> None:
        self._gpus, self._every_s, self._silent_s, self._ask = gpus, every_s, silent_s, ask
        self._answers: queue.SimpleQueue[GpuSample | Silence] = queue.SimpleQueue()
        self._silent: set[int | None] = set()
        self._asked_at: float | None = None  # while the thread waits for the driver
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def new(self) -> list[GpuSample | Silence]:
        """Return the answers since the last call; never waits. A silence is told once."""
        if self._thread is None and self._gpus:
            self._thread = threading.Thread(target=self._watch, name="GPU samples", daemon=True)
            self._thread.start()
        news = []
        while not self._answers.empty():
            news.append(self._answers.get())
        asked_at = self._asked_at
        if asked_at is not None and time.monotonic() - asked_at > self._silent_s:
            why = f"the NVIDIA driver has not answered for {self._silent_s:g} s"
            news.append(Silence(None, why))
        return [item for item in news if self._is_news(item)]

    def stop(self) -> None:
        """Ask for no more samples; does not wait for a driver that does not answer."""
        self._stop.set()

    def _is_news(self, item: GpuSample | Silence) -> bool:
        if isinstance(item, GpuSample):
            return True
        is_first = item.index not in self._silent
        self._silent.add(item.index)
        return is_first

    def _watch(self) -> None:
        while True:
            for gpu in self._gpus:
                self._asked_at = time.monotonic()
                self._answers.put(self._ask(gpu))
                self._asked_at = None
            if self._stop.wait(self._every_s):
                return
