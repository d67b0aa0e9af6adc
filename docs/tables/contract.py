"""The tables of the contract: events, exit codes, settings, and ways to start."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

from rundir.config import SECTIONS, EvaluationConfig
from rundir.errors import ExitCode
from rundir.schema import EVENTS, EventSpec
from rundir.starts import STARTS


def events_table() -> str:
    """Return the event table as Markdown."""
    head = ["| event | kind | written by | meaning | fields |", "|---|---|---|---|---|"]
    rows = [
        f"| `{spec.name}` | {spec.kind} | {spec.writer} | {spec.meaning} | {_fields(spec)} |"
        for spec in EVENTS
    ]
    return "\n".join(head + rows)


def _fields(spec: EventSpec) -> str:
    parts = [
        f"`{name}`{' or null' if name in spec.optional else ''}: {meaning}"
        for name, meaning in spec.fields.items()
    ]
    return "<br>".join(parts)


def exit_codes_table() -> str:
    """Return the exit codes as Markdown."""
    rows = ["| exit code | meaning |", "|---|---|"]
    return "\n".join(rows + [f"| {code.value} | {code.meaning} |" for code in ExitCode])


def settings_table() -> str:
    """Return every key of a profile as Markdown."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for section, cls in {**SECTIONS, "evaluation.NAME": EvaluationConfig}.items():
        hints = get_type_hints(cls)
        for item in fields(cls):
            choices = get_args(hints[item.name])
            spelt = [
                str(choice_value).lower() if choice_value in (True, False) else choice_value
                for choice_value in choices
            ]
            among = f" One of {', '.join(f'`{choice}`' for choice in spelt)}." if spelt else ""
            default = f"`{item.default}`" if item.default != "" else ""
            meaning = item.metadata["help"]
            rows.append(f"| `{section}.{item.name}` | {default} | {meaning}.{among} |")
    return "\n".join(rows)


def starts_table() -> str:
    """Return the valid combinations of start, load and method as Markdown."""
    head = ["| `launch.start` | `launch.load` | `train.method` | the zygote | each rank |"]
    rows = [
        f"| `{row.start}` | `{row.load}` | {', '.join(f'`{method}`' for method in row.methods)} "
        f"| {row.zygote_does} | {row.rank_does} |"
        for row in STARTS
    ]
    return "\n".join([*head, "|---" * 5 + "|", *rows])
