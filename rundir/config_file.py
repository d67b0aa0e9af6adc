"""config.toml of a run folder: the resolved configuration, with each value's source beside it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rundir.atomic import write_text
from rundir.config import (
    SCRIPT_SECTIONS,
    SECTIONS,
    EvaluationConfig,
    RunConfig,
    ScoringConfig,
    ScriptConfig,
    Sources,
)

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def config_text(config: RunConfig, sources: Sources) -> str:
    """Return the configuration as TOML."""
    lines = [f"profile = {_toml(config.profile)}"]
    tables = asdict(config)
    named = tables.pop("evaluation")
    tables |= {f"evaluation.{_key(name)}": values for name, values in named.items()}
    for section, values in tables.items():
        if not isinstance(values, dict):
            continue
        if config.script is not None and section not in (*SCRIPT_SECTIONS, "script"):
            continue
        lines.append(f"\n[{section}]")
        for key, value in values.items():
            source = sources.get(f"{section}.{key}", "profile")
            lines.append(f"{_key(key)} = {_toml(value)}  # {source}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def _toml(value: Any) -> str:
    """Return a scalar, list or table as TOML; JSON's strings and numbers are valid TOML as well."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # TOML spells inf, -inf and nan the same way
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_config(path: Path) -> RunConfig:
    """Return the configuration that `config_text` wrote.

    Raises OSError, or ValueError for an incomplete file.
    """
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    try:
        if "script" in table:
            sections = {name: SECTIONS[name](**table[name]) for name in SCRIPT_SECTIONS}
            script = {key: _frozen(value) for key, value in table["script"].items()}
            return RunConfig(profile=table["profile"], script=ScriptConfig(**script), **sections)
        sections = {name: cls(**table[name]) for name, cls in SECTIONS.items()}
        named = table.get("evaluation", {})
        return RunConfig(
            profile=table["profile"],
            architecture=table["architecture"],
            evaluation={name: EvaluationConfig(**keys) for name, keys in named.items()},
            scoring=ScoringConfig(**table["scoring"]) if "scoring" in table else None,
            **sections,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not whole, or of another version: {error}") from error


def is_of_script(path: Path) -> bool:
    """Return whether a run is of a user's script; False if its configuration cannot be read."""
    try:
        return read_config(path).script is not None
    except (OSError, ValueError):
        return False


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def change_setting(path: Path, key: str, value: Any, source: str) -> None:
    """Change the line of `section.name` in a config.toml, and its source; replaces the file.

    Raises OSError, or ValueError if it has no such line.
    """
    section, _, name = key.partition(".")
    lines, within = path.read_text(encoding="utf-8").split("\n"), ""
    for place, line in enumerate(lines):
        if line.startswith("["):
            within = line.strip("[]")
        elif within == section and line.startswith(f"{name} = "):
            lines[place] = f"{name} = {_toml(value)}  # {source}"
            write_text(path, "\n".join(lines))
            return
    raise ValueError(f"{path} has no {key}")
