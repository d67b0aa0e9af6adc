"""The results in OUT/*.json as Markdown, for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.gpus.claims import claims
from benchmarks.gpus.record import Record

_GIB = 1024**3
_BYTES = ("gpu_peak_bytes", "plan_peak_bytes", "nvml_loaded_peak_bytes", "plan_most_bytes")


def markdown(records: Mapping[str, Record]) -> str:
    """Return machines, trainings, other figures, goals, and what is missing with the reason."""
    measured = {name: one for name, one in records.items() if one.figures}
    figures = {name: one.figures for name, one in measured.items()}
    trainings = [one for one in measured.values() if "tokens_per_s" in one.figures]
    others = [one for one in measured.values() if "tokens_per_s" not in one.figures]
    ended = [one for one in records.values() if one.status != "done"]
    parts = [
        _machines(measured.values()),
        _table(
            "training | tokens/s | the roofline's | MFU | HFU | peak, GiB | the plan's | "
            "NVML, loaded | the plan's most | first step, s | last loss",
            map(_training, trainings),
        ),
        _table("case | figures", ((one.case, in_words(one.figures)) for one in others)),
        _table(
            "goal | measured | limit | holds",
            (
                (
                    name,
                    f"{claim.value:.4g}",
                    _limit(claim.as_dict()),
                    "yes" if claim.holds else "**no**",
                )
                for name, claim in claims(figures).items()
            ),
        ),
        _table(
            "not measured, or not to the end | how it ended | why",
            ((one.case, one.status, _one_line(one.reason)) for one in ended),
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _machines(records: Iterable[Record]) -> str:
    """Return a line for each machine, with the commands and the dates."""
    by_machine: dict[str, list[Record]] = {}
    for one in records:
        by_machine.setdefault(_machine(one.machine), []).append(one)
    lines = []
    for machine, its in by_machine.items():
        days = sorted({one.date[:10] for one in its})
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        lines.append(f"{when}; {machine}.\n")
        for command in dict.fromkeys(one.command for one in its):
            cases = ", ".join(one.case for one in its if one.command == command)
            lines.append(f"- `{command}`: {cases}")
    return "\n".join(lines)


def _machine(found: Mapping[str, Any]) -> str:
    words = [str(found.get("gpu", "no GPU"))]
    if "gpu_memory_bytes" in found:
        words.append(f"{gib(found['gpu_memory_bytes'])} GiB, driver {found['driver']}")
    words.append(f"{found.get('cores', '?')} cores, {gib(found.get('memory_bytes'))} GiB")
    names = ("python", "torch", "transformers")
    return "; ".join(
        [*words, ", ".join(f"{name} {found[name]}" for name in names if name in found)]
    )


def _training(one: Record) -> tuple[str, ...]:
    found = one.figures
    return (
        one.case,
        f"{found['tokens_per_s']:,.0f}",
        f"{found['roofline_tokens_per_s']:,.0f}" if found.get("roofline_tokens_per_s") else "",
        *("" if found.get(key) is None else f"{found[key]:.1%}" for key in ("mfu", "hfu")),
        *(gib(found.get(key)) for key in _BYTES),
        f"{found['first_step_s']:.0f}",
        f"{found['last_loss']:.4f}",
    )


def in_words(figures: Mapping[str, Any]) -> str:
    """Return figures as a list in one line, bytes in GiB."""
    return "; ".join(
        f"{key.removesuffix('_bytes')} {gib(value)} GiB"
        if key.endswith("_bytes")
        else f"{key} {round(value, 4) if isinstance(value, float) else _one_line(str(value))}"
        for key, value in figures.items()
        if value is not None
    )


def gib(num_bytes: int | None) -> str:
    """Return bytes in GiB, without the unit; nothing for None."""
    return "" if num_bytes is None else f"{num_bytes / _GIB:,.2f}"


def _limit(claim: Mapping[str, Any]) -> str:
    return f"≤ {claim['at_most']:g}" if "at_most" in claim else f"≥ {claim['at_least']:g}"


def _one_line(text: str) -> str:
    """Return the first and the last line of a reason, in which no sign ends a cell."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    shown = lines if len(lines) == 1 else [lines[0], lines[-1]]
    return " … ".join(shown).replace("|", "\\|")[:400]


def _table(heads: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    num_columns = heads.count(" | ") + 1
    return "\n".join([f"| {heads} |", "|---" * num_columns + "|", *lines])
