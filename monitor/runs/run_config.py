"""How a run was started: its settings, its command, the versions; secrets are masked."""

from __future__ import annotations

import json
import os
import tomllib
from contextlib import suppress
from functools import lru_cache
from typing import Any

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import json_inside, text_inside
from rundir.masking import Mask
from rundir.paths import RunDir


def config_of(run: RunDir, mask: Mask) -> dict[str, Any]:
    """Return config.toml as text and as `section.key: value`, the command and the versions."""
    text = command = ""
    made_with: Any = {}
    with suppress(NotFoundError):
        text = text_inside(run, "config.toml")
    with suppress(NotFoundError):
        command = text_inside(run, "command.txt")
    with suppress(NotFoundError):
        made_with = json_inside(run, "made_with.json")
    return {
        "run": run.run_id,
        "text": mask.text(text),
        "values": _values(text, mask),
        "command": mask.text(command.partition("\n")[0]),
        "torchrun": mask.text(command.partition("# with torch's own:\n")[2].strip()),
        "made_with": made_with if isinstance(made_with, dict) else {},
    }


def _values(text: str, mask: Mask) -> dict[str, Any]:
    """Return each setting by its dotted name; none of a file that is no whole TOML."""
    try:
        table = json.loads(json.dumps(tomllib.loads(text), default=str))  # a date is its text
    except (ValueError, RecursionError):
        return {}
    values: dict[str, Any] = {}
    todo: list[tuple[str, Any]] = [("", table)]
    while todo:
        name, value = todo.pop()
        if isinstance(value, dict) and value:
            todo += [(f"{name}.{key}" if name else key, item) for key, item in value.items()]
        elif name:
            values[name] = masked_value(name, value, mask)
    return dict(sorted(values.items()))


def mask_for(run: RunDir) -> Mask:
    """Return the mask for texts of `run`, made again when its variables have changed."""
    try:
        stamp = run.environment.lstat().st_mtime_ns
    except OSError:
        stamp = 0
    return _mask(run, stamp)


@lru_cache(maxsize=64)
def _mask(run: RunDir, _stamp: int) -> Mask:
    return Mask([os.environ, _variables(run)])


def _variables(run: RunDir) -> dict[str, str]:
    """Return the variables of the run's ranks; none if they cannot be read."""
    try:
        environment = json_inside(run, "environment.json")
        rows = [*environment["variables"], *environment["not_passed_on"]]
        return {str(row["name"]): str(row["value"]) for row in rows}
    except (NotFoundError, KeyError, TypeError):
        return {}


def masked_value(name: str, value: Any, mask: Mask) -> Any:
    """Return a setting as it may be shown: by its name, or by what it holds."""
    if isinstance(value, str):
        return mask.variable(name, value)
    if isinstance(value, dict):
        return {key: masked_value(str(key), item, mask) for key, item in value.items()}
    if isinstance(value, list):
        return [masked_value(name, item, mask) for item in value]
    return value
