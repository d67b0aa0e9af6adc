"""From measurements to claims: ratios with their limits, and tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.starts.cases import Case, Figures

    Results = Mapping[Case, Figures]

_MB = 1e6


def machine() -> dict[str, Any]:
    """Describe the machine that the measurements were made on."""
    import torch

    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


@dataclass(frozen=True, slots=True)
class Ratio:
    """One claim: its samples, and the limit that their median must not exceed."""

    values: Sequence[float]
    at_most: float

    def as_dict(self) -> dict[str, float | bool]:
        """Return the median, range and limit, and whether the claim holds."""
        middle = median(self.values)
        return {
            "median": round(middle, 4),
            "min": round(min(self.values), 4),
            "max": round(max(self.values), 4),
            "at_most": self.at_most,
            "holds": middle <= self.at_most,
        }


def ratios(results: Results) -> tuple[dict[str, dict[str, float | bool]], bool | str]:
    """Return every measured claim, and whether all hold; "incomplete" if some are missing."""
    by_name = {case.name: figures for case, figures in results.items()}
    values = {}
    for name, make in _CLAIMS.items():
        try:
            ratio = make(by_name)
        except KeyError:  # one of its cases was not measured
            continue
        if ratio.values:
            values[name] = ratio.as_dict()
    if not all(value["holds"] for value in values.values()):
        return values, False
    return values, True if len(values) == len(_CLAIMS) else "incomplete"


Figure = Callable[[Mapping[str, "Figures"]], Ratio]


def _paired(ours: str, theirs: str, at_most: float, what: str = "ready_s") -> Figure:
    """Compute the ratio of two cases, repetition by repetition."""

    def make(by_name: Mapping[str, Figures]) -> Ratio:
        pairs = zip(getattr(by_name[ours], what), getattr(by_name[theirs], what), strict=False)
        return Ratio([one / other for one, other in pairs], at_most)

    return make


def _slopes(by_name: Mapping[str, Figures], launcher: str, what: str, suffix: str) -> list[float]:
    """Return what each rank from the 9th to the 32nd adds, repetition by repetition."""
    few, many = (getattr(by_name[f"{launcher}, {num} ranks{suffix}"], what) for num in (8, 32))
    return [(more - less) / (32 - 8) for less, more in zip(few, many, strict=False)]


def _slope(launcher: str, what: str, suffix: str, at_most: float, unit: float = 1.0) -> Figure:
    return lambda by_name: Ratio(
        [value / unit for value in _slopes(by_name, launcher, what, suffix)], at_most
    )


def _slope_ratio(by_name: Mapping[str, Figures]) -> Ratio:
    ours = _slopes(by_name, "airlock warm", "ready_s", ", model")
    theirs = _slopes(by_name, "airlock imports", "ready_s", ", model")
    return Ratio([one / other for one, other in zip(ours, theirs, strict=False)], 0.7)


def _failed_restarts(by_name: Mapping[str, Figures]) -> Ratio:
    figures = by_name[_WARM]
    num_failed = figures.num_restarts - len(figures.restart_s)
    return Ratio([float(num_failed)] if figures.num_restarts else [], 0)


def _failed(name: str) -> Figure:
    return lambda by_name: Ratio([float(by_name[name].num_failed)], 0)


def _came_up(name: str) -> Figure:
    return lambda by_name: Ratio([float(len(by_name[name].ready_s))], 0)


def _oom_kills(name: str) -> Figure:
    return lambda by_name: Ratio([float(num) for num in by_name[name].num_oom_kills], 0)


_WARM = "airlock warm, 8 ranks"
_AUTO = "airlock cold auto, 8 ranks, pickle, under 10,000 MB"
_SERIAL = "airlock cold, 8 ranks, pickle, under 10,000 MB"
_CLAIMS: dict[str, Figure] = {
    "8 ranks warm / 8 under torchrun": _paired(_WARM, "torchrun, 8 ranks", 0.28),
    "8 ranks warm / 8 with a strict lock": _paired(_WARM, "strict lock, 8 ranks", 0.17),
    "8 ranks warm / 1 under torchrun": _paired(_WARM, "torchrun, 1 ranks", 1.15),
    "memory of 8 warm / 8 under torchrun": _paired(
        _WARM, "torchrun, 8 ranks", 0.30, "peak_pss_bytes"
    ),
    "seconds for each rank from 8 to 32": _slope("airlock warm", "ready_s", "", 0.13),
    "anonymous MB for each rank from 8 to 32": _slope(
        "airlock warm", "peak_anon_bytes", "", 20, _MB
    ),
    "seconds a rank, model in the zygote / in each rank": _slope_ratio,
    "anonymous MB for each rank from 8 to 32, model": _slope(
        "airlock warm", "peak_anon_bytes", ", model", 20, _MB
    ),
    "death of a rank to the next barrier, seconds, slowest": lambda by_name: Ratio(
        [max(by_name[_WARM].restart_s)] if by_name[_WARM].restart_s else [], 1.0
    ),
    "restarts that failed, of 20 (3 with --quick)": _failed_restarts,
    "8 warm ranks in 1.2 GB: starts that failed": _failed("airlock warm, 8 ranks, under 1,200 MB"),
    "8 ranks under torchrun in 1.2 GB: starts that came up": _came_up(
        "torchrun, 8 ranks, under 1,200 MB"
    ),
    "8 cold ranks load a pickle in 10 GB: auto / serial, time, first start": _paired(
        _AUTO, _SERIAL, 1.0
    ),
    "the same from the second start on": _paired(f"{_AUTO}, again", _SERIAL, 1 / 1.5),
    "the same: OOM kills with auto": _oom_kills(_AUTO),
    "2 runs of 4 at once, pickle, in 10 GB: runs that failed": _failed(
        "airlock cold auto, 4 ranks, pickle, under 10,000 MB, 2 runs at once"
    ),
    **{
        f"{script}, {num} ranks: airlock / torchrun, from exec to end": _paired(
            f"airlock script, {num} ranks, {script}",
            f"torchrun script, {num} ranks, {script}",
            1.0,
            "whole_s",
        )
        for script in ("accelerate test_script", "ddp_tutorial")
        for num in (2, 4)
    },
}


def print_tables(results: Results, values: Mapping[str, Mapping[str, float | bool]]) -> None:
    """Print the measurements and the claims for people."""
    console = Console()
    table = Table(
        "case",
        "ready, s (range)",
        "peak Σ PSS, MB",
        "anonymous, MB",
        "failed",
        "OOM kills",
        title="starts",
    )
    for case, figures in sorted(results.items()):
        times = figures.ready_s
        spread = f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if times else ""
        table.add_row(
            case.name,
            spread,
            _megabytes(figures.peak_pss_bytes),
            _megabytes(figures.peak_anon_bytes),
            str(figures.num_failed or ""),
            ", ".join(map(str, figures.num_oom_kills)),
        )
        if figures.restart_s:
            table.add_row(
                f"  restarts: {len(figures.restart_s)} of {figures.num_restarts} good",
                f"{median(figures.restart_s):.2f} (to {max(figures.restart_s):.2f})",
            )
    console.print(table)
    claims = Table("claim", "median", "range", "limit", "", title="claims")
    for name, value in values.items():
        claims.add_row(
            name,
            f"{value['median']:.3f}",
            f"{value['min']:.3f} to {value['max']:.3f}",
            f"{value['at_most']:g}",
            "holds" if value["holds"] else "FAILS",
        )
    console.print(claims)


def _megabytes(values: Sequence[int]) -> str:
    return f"{median(values) / _MB:,.0f}" if values else ""
