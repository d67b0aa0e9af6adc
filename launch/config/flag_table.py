"""Options and variables of other launchers and scripts: other_flags.toml, read and looked up."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

from launch.config.setting_values import choices_of
from rundir.config import SECTIONS

_FILE = Path(__file__).with_name("other_flags.toml")
Kind = Literal["setting", "option", "variable", "profile", "resume", "data", "computed", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a flag is in Airlock: the `name` of a setting, an option or a variable.

    `of_flag`: of a flag that has no value, or true or false; the value to set where it is true.
    `script`: the values with which it is understood before a script's name; "any" for all.
    """

    kind: Kind
    name: str = ""
    note: str = ""
    of_flag: str = ""
    values: Mapping[str, str] = field(default_factory=dict)  # another program's words for values
    script: tuple[str, ...] = ()


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@cache
def _meanings() -> dict[str, Meaning]:
    return {
        flag: Meaning(
            kind=row["kind"],
            name=row.get("is", ""),
            note=row.get("note", ""),
            of_flag=row.get("on", ""),
            values=row.get("values", {}),
            script=tuple(row.get("script", "").split()),
        )
        for row in _table()["meaning"]
        for flag in row["flags"].split()
    }


def meaning_of(flag: str) -> Meaning | None:
    """Return what a flag of another program is in Airlock; None if nothing is like it."""
    if not re.fullmatch(r"--[A-Za-z][A-Za-z0-9_-]+", flag):
        return None
    name = flag[2:].replace("-", "_").lower()
    if name in _meanings():
        return _meanings()[name]
    keys = [(section, cls) for section, cls in SECTIONS.items() if name in _names(cls)]
    if len(keys) != 1:
        return None
    section, cls = keys[0]
    hint = get_type_hints(cls)[name]
    is_flag = hint is bool or True in choices_of(hint)[0]
    of_flag = "true" if is_flag else ""
    return Meaning(kind="setting", name=f"{section}.{name}", of_flag=of_flag)


def unread_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each setting that stands in a variable, as scripts of others read it."""
    lines = []
    for name in _table()["variables"].split():
        meaning, value = meaning_of(f"--{name.lower()}"), environ.get(name, "")
        if meaning is not None and value:
            option = "--set " if meaning.kind == "setting" else ""
            here = f"{option}{meaning.name}{'=' if option else ' '}{value}"
            lines.append(f"airlock: {name}={value} is not read; here it is {here}")
    return lines


def _names(cls: type) -> set[str]:
    return {item.name for item in fields(cls)}
