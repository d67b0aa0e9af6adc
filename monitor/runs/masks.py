"""The masks for secrets, one for each run: the same as in its incidents."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

from monitor.http.api_errors import NotFoundError
from monitor.runs.inside import json_inside
from rundir.masking import Mask
from rundir.paths import RunDir


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
