"""What the GPUs of a run have been doing, folded from its `gpu` events: now, and over the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from machine.gpus.gpu_samples import POWER_CAP
from rundir.events import Event
from rundir.units import GIB, clock_text

_SLOWED_SAMPLES = 3  # in a row, before it is worth a warning
_LONGEST_GAP_S = 60.0  # between two samples that still belong together


@dataclass(slots=True)
class GpuUse:
    """One GPU: its last sample, and its figures over the run."""

    last: Event
    peak_used_bytes: int = 0
    max_temperature_c: int | None = None
    slowed_s: float = 0.0  # with clocks lowered for a fault
    faults: dict[str, None] = field(default_factory=dict)  # those, in the order they were met
    warned_of: Event | None = None  # the sample with which it was time to warn
    _busy_percent: float = 0.0
    _num_busy: int = 0
    _num_slowed: int = 0

    def add(self, event: Event, *, is_training: bool) -> None:
        """Take in a sample; utilisation counts only while the run trains."""
        gap_s = max(0.0, event["mono"] - self.last["mono"])
        self.last = event
        self.peak_used_bytes = max(self.peak_used_bytes, event["used_bytes"])
        if (celsius := event["temperature_c"]) is not None:
            self.max_temperature_c = max(celsius, self.max_temperature_c or celsius)
        if is_training and event["utilization_percent"] is not None:
            self._busy_percent += event["utilization_percent"]
            self._num_busy += 1
        faults = self.faults_now
        self._num_slowed = self._num_slowed + 1 if faults else 0
        if faults:
            self.faults |= dict.fromkeys(faults)
            self.slowed_s += min(gap_s, _LONGEST_GAP_S)
        if self._num_slowed == _SLOWED_SAMPLES and self.warned_of is None:
            self.warned_of = event

    @property
    def faults_now(self) -> list[str]:
        """The faults that lower its clocks at the moment."""
        return [fault for fault in self.last["slowed_by"] or () if fault != POWER_CAP]

    @property
    def busy_percent(self) -> float | None:
        """The mean share of time that a kernel ran, in percent; None if that is not known."""
        return self._busy_percent / self._num_busy if self._num_busy else None


def now_text(gpus: Iterable[GpuUse]) -> str:
    """Return the state of all GPUs in a few words; an empty text if there are none.

    The fullest one's memory, the least utilisation, the highest temperature, and the sum of power.
    """
    last = [gpu.last for gpu in gpus]
    if not last:
        return ""
    fullest = max(last, key=lambda sample: float(sample["used_bytes"] / sample["total_bytes"]))
    parts = [f"gpu {fullest['used_bytes'] / GIB:.1f}/{fullest['total_bytes'] / GIB:.1f} GiB"]
    parts += [f"{low}%" for low in _known(last, "utilization_percent")[:1]]
    parts += [f"{high} °C" for high in _known(last, "temperature_c")[-1:]]
    if watts := _known(last, "power_w"):
        parts.append(f"{sum(watts):,.0f} W")
    return " ".join(parts)


def over_the_run(gpus: Iterable[GpuUse]) -> str:
    """Return the same over the whole run, with how long clocks were lowered for a fault."""
    gpus = list(gpus)
    if not gpus:
        return ""
    fullest = max(gpus, key=lambda gpu: float(gpu.peak_used_bytes / gpu.last["total_bytes"]))
    total_gib = fullest.last["total_bytes"] / GIB
    parts = [f"peak {fullest.peak_used_bytes / GIB:.1f} of {total_gib:.1f} GiB"]
    busy = [gpu.busy_percent for gpu in gpus if gpu.busy_percent is not None]
    if busy:
        parts.append(f"{sum(busy) / len(busy):.0f}% busy in training")
    celsius = [gpu.max_temperature_c for gpu in gpus if gpu.max_temperature_c is not None]
    if celsius:
        parts.append(f"up to {max(celsius)} °C")
    parts += [
        f"GPU {gpu.last['index']} slowed down for {clock_text(gpu.slowed_s)}: "
        f"{', '.join(gpu.faults)}"
        for gpu in gpus
        if gpu.faults
    ]
    return "; ".join(parts)


def warning_of(gpu: GpuUse) -> str:
    """Return a warning of a GPU whose clocks stay lowered."""
    index, celsius = gpu.last["index"], gpu.last["temperature_c"]
    heat = "" if celsius is None else f", {celsius} °C"
    return (
        f"airlock: GPU {index} runs slowed down ({', '.join(gpu.faults)}{heat}), and every rank "
        f"waits for it\n  → nvidia-smi -q -i {index} -d TEMPERATURE,POWER,PERFORMANCE   # its "
        "cooling, its power supply?"
    )


def _known(samples: Iterable[Event], key: str) -> list[float]:
    """Return the values of a field, without nulls, from the least to the greatest."""
    return sorted(sample[key] for sample in samples if sample[key] is not None)
