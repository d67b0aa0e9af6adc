"""What the checks look at, and the three things that one can find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launch.host.devices import Placement
from launch.host.nvml import DriverState
from rundir.config import RunConfig, Sources
from rundir.finding import Figure, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One run that is to start, and what more than one check wants to know of the machine."""

    config: RunConfig
    sources: Sources
    placement: Placement
    environ: Mapping[str, str]
    driver: Callable[[], DriverState | None]  # asked once, however often it is called


def fine(check: str, text: str, **figures: Figure) -> Finding:
    """Nothing is wrong; `text` is what was seen."""
    return Finding(check=check, ok=True, text=text, figures=figures)


def warning(check: str, text: str, do: str, **figures: Figure) -> Finding:
    """The run goes on, and may come to harm: what was seen, against which limit, and the fix."""
    return Finding(check=check, ok=True, text="", warning=text, do=do, figures=figures)


def error(check: str, text: str, do: str, **figures: Figure) -> Finding:
    """The run would end for it: what was seen, against which limit, and the fix."""
    return Finding(check=check, ok=False, text=text, do=do, figures=figures)
