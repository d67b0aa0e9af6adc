"""The context of the checks, and the three kinds of finding: fine, warning and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from machine.gpus.devices import Placement
from machine.gpus.nvml import DriverState
from rundir.config import RunConfig, Sources
from rundir.finding import Figure, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One run that is to start, and what more than one check needs to know about the machine."""

    config: RunConfig
    sources: Sources
    placement: Placement
    environ: Mapping[str, str]
    driver: Callable[[], DriverState | None]  # queried once, however often it is called


def fine(check: str, text: str, **figures: Figure) -> Finding:
    """Return a finding that nothing is wrong; `text` is what was seen."""
    return Finding(check=check, ok=True, text=text, figures=figures)


def warning(check: str, text: str, do: str, **figures: Figure) -> Finding:
    """Return a finding that may harm the run: what was seen, against which limit, and the fix."""
    return Finding(check=check, ok=True, text="", warning=text, do=do, figures=figures)


def error(check: str, text: str, do: str, **figures: Figure) -> Finding:
    """Return a finding that would end the run: what was seen, against which limit, and the fix."""
    return Finding(check=check, ok=False, text=text, do=do, figures=figures)
