"""Rows about the machine while a run goes on."""

from __future__ import annotations

from rundir.event_table.spec import EventSpec

EVENTS: tuple[EventSpec, ...] = (
    EventSpec(
        name="host",
        kind="metric",
        writer="launch",
        meaning="host memory of the run",
        fields={
            "pss_bytes": "proportional set size, summed over every process of the run",
            "pss_anon_bytes": "its anonymous part",
            "num_processes": "processes of the run",
            "available_bytes": "MemAvailable of the host",
        },
    ),
    EventSpec(
        name="gpu",
        kind="metric",
        writer="launch",
        meaning="one GPU of the run, every 5 seconds while ranks are there",
        fields={
            "index": "as nvidia-smi numbers it",
            "used_bytes": "memory in use by anyone",
            "total_bytes": "memory it has",
            "utilization_percent": "share of time a kernel ran; null for this and the next ones "
            "if the GPU does not report it, as a part of one (MIG)",
            "temperature_c": "of its chip, °C",
            "power_w": "what it draws, W",
            "power_limit_w": "what it may draw, W",
            "slowed_by": "why its clocks are lowered, a list: power cap, hardware slowdown, too "
            "hot (hardware), too hot (driver), power brake",
        },
        optional=frozenset(
            {"utilization_percent", "temperature_c", "power_w", "power_limit_w", "slowed_by"}
        ),
    ),
    EventSpec(
        name="gpu.silent",
        kind="mark",
        writer="launch",
        meaning="a GPU of the run, or the whole driver, does not answer any more",
        fields={
            "index": "as nvidia-smi numbers it; null for the driver",
            "why": "what NVML says",
        },
        optional=frozenset({"index"}),
    ),
)
