"""The named sets of held-out data: [evaluation.NAME] of a profile, --set evaluation.NAME.KEY.

And what evaluation needs that its settings only say together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from launch.config.setting_values import checked_value
from machine.typed import again
from rundir.config import EvaluationConfig, RunConfig
from rundir.data_paths import absolute_paths
from rundir.errors import UserError

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}"
_KEYS = tuple(item.name for item in fields(EvaluationConfig))


def split_settings(settings: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the settings of named sets, and the others."""
    of_sets = [setting for setting in settings if setting.strip().startswith("evaluation.")]
    return of_sets, [setting for setting in settings if setting not in of_sets]


def resolve_sets(
    table: Mapping[str, Any], layer: str, settings: Sequence[str], base: Path
) -> dict[str, EvaluationConfig]:
    """Return the sets by name; relative paths of `table`, a profile's, are below `base`.

    Raises UserError for a name or a key that cannot be, and for a set without a path.
    """
    if not isinstance(table, Mapping) or any(
        not isinstance(keys, Mapping) for keys in table.values()
    ):
        raise UserError(
            f"{layer}: [evaluation] holds something else than sets",
            do='[evaluation.NAME] and, below it, path = "FILE"',
        )
    given: dict[str, dict[str, Any]] = {}
    for name, content in table.items():
        _check(name, content, layer)
        given[name] = {**content, "path": absolute_paths(str(content.get("path", "")), base)}
    for setting in settings:
        key, equals, value = setting.partition("=")
        _, _, rest = key.strip().partition(".")
        name, _, item = rest.partition(".")
        _check(name, [item], f"--set {key}")
        if not equals:
            raise UserError(f"--set {setting!r} has no value", do=f"--set {key}=VALUE")
        value = absolute_paths(value, Path.cwd()) if item == "path" else value
        given.setdefault(name, {})[item] = value
    return {name: _resolved(name, values) for name, values in given.items()}


def _check(name: str, keys: Any, where: str) -> None:
    if not re.fullmatch(NAME, name):
        raise UserError(
            f"{where}: a set called {name!r}", do="up to 40 letters, digits, - and _ as its name"
        )
    odd = [key for key in keys if key not in _KEYS]
    if odd:
        raise UserError(
            f"{where}: unknown key evaluation.{name}.{odd[0]}", do=f"one of {', '.join(_KEYS)}"
        )


def _resolved(name: str, values: dict[str, Any]) -> EvaluationConfig:
    hints = get_type_hints(EvaluationConfig)
    settings = {
        item.name: checked_value(values[item.name], hints[item.name], item, f"evaluation.{name}")
        for item in fields(EvaluationConfig)
        if item.name in values
    }
    made = EvaluationConfig(**settings)
    if not made.path:
        raise UserError(
            f"the set evaluation.{name} has no path", do=f"--set evaluation.{name}.path=FILE"
        )
    return made


def check_evaluations(config: RunConfig) -> None:
    """Raise UserError if a run is to stop early by a held-out loss that nothing would measure."""
    train, data = config.train, config.data
    if not train.early_stop_evaluations:
        return
    what = f"train.early_stop_evaluations = {train.early_stop_evaluations}"
    start = again(config.profile)
    if not train.evaluate:
        raise UserError(
            f"{what}, and train.evaluate = false: nothing is evaluated",
            do=f"{start} --set train.evaluate=true",
        )
    if not train.eval_every_steps:
        raise UserError(
            f"{what}, and train.eval_every_steps = 0: it is evaluated before and after alone",
            do=f"{start} --set train.eval_every_steps=50   # say",
        )
    if not data.eval_path and not data.held_out_share:
        raise UserError(
            f"{what}, and there are no held-out data: data.eval_path is empty, data.eval_fraction "
            f"{data.eval_fraction:g}",
            do=f"{start} --set data.eval_fraction=0.05   # or data.eval_path=FILE",
        )
