"""The value of each setting: by option, environment, profile or default; checked by its field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, get_args, get_type_hints

from rundir.config import SECTIONS, Sources
from rundir.errors import UserError

_ALIASES = {"limits.rlimit_as_gib": "AIRLOCK_RLIMIT_AS_GIB"}  # names that predate the naming rule
_MOST = 1e30  # the upper bound of every number: no setting needs more
_BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def resolve_sections(
    sections: Sequence[str],
    below: tuple[dict[str, Any], str],
    settings: Sequence[str],
    environ: Mapping[str, str],
) -> tuple[dict[str, Any], Sources]:
    """Return the values of these sections, and their sources.

    `below` is the table of lower precedence and the name of its source. Raises UserError as
    `resolve` does.
    """
    options = dict(_split_setting(setting) for setting in settings)
    table, layer = below
    sources: Sources = {}
    values: dict[str, Any] = {}
    for section in sections:
        cls = SECTIONS[section]
        hints = get_type_hints(cls)
        values[section] = cls(
            **{
                item.name: _resolve_setting(
                    f"{section}.{item.name}",
                    item,
                    hints[item.name],
                    (table.get(section, {}), layer),
                    environ,
                    options,
                    sources,
                )
                for item in fields(cls)
            }
        )
    return values, sources


def check_key(key: str, *, where: str) -> None:
    """Raise UserError, with the closest match, unless `key` is an existing `section.name`."""
    known = [f"{section}.{item.name}" for section, cls in SECTIONS.items() for item in fields(cls)]
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f"perhaps {near[0]}?" if near else f"keys begin with {', '.join(SECTIONS)}"
        raise UserError(f"{where}: unknown key {key!r}", do=f"{hint} All: docs/configuration.md")


def env_names(key: str) -> list[str]:
    """Return the environment variables that set `section.name`; the first one set wins."""
    by_rule = "AIRLOCK_" + key.replace(".", "_").upper()
    return [_ALIASES[key], by_rule] if key in _ALIASES else [by_rule]


def _split_setting(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise UserError(
            f"--set {setting!r} has no value",
            do="--set section.key=value, as in train.max_steps=10",
        )
    check_key(key.strip(), where="--set")
    return key.strip(), value


def _resolve_setting(
    key: str,
    item: Field[Any],
    hint: Any,
    below: tuple[dict[str, Any], str],
    environ: Mapping[str, str],
    options: dict[str, str],
    sources: Sources,
) -> Any:
    table, layer = below
    if key in options:
        value, source = _from_text(options[key], hint, f"--set {key}"), f"option --set {key}"
    elif name := next((name for name in env_names(key) if environ.get(name, "").strip()), None):
        value, source = _from_text(environ[name], hint, name), f"environment {name}"
    elif item.name in table:
        value, source = table[item.name], layer
    else:
        value, source = item.default, "default"
    sources[key] = source
    return _checked(value, hint, item, f"{key} ({source})")


def checked_value(given: Any, hint: Any, item: Field[Any], where: str) -> Any:
    """Return a value, or a text that stands for one, checked. Raises UserError."""
    value = _from_text(given, hint, where) if isinstance(given, str) else given
    return _checked(value, hint, item, f"{where}.{item.name}")


def _from_text(text: str, hint: Any, where: str) -> Any:
    """Return `text` converted to `hint`; an invalid number stays text, for `_checked` to report."""
    text = text.strip()
    choices, or_number = choices_of(hint)
    if hint is bool or True in choices:
        value = _BOOLS.get(text.casefold(), text)
        return int(text) if or_number and isinstance(value, str) and text.isdecimal() else value
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            return text
    assert hint is str or get_args(hint), where
    return text


def _checked(given: Any, hint: Any, item: Field[Any], where: str) -> Any:
    """Return the value if it has its field's type and range; an int is accepted as a float.

    Raises UserError otherwise.
    """
    choices, or_number = choices_of(hint)
    kind: Any = str if choices else hint
    if isinstance(given, bool) and True in choices:
        return given
    if or_number and type(given) is int:
        choices, kind = (), int
    value: Any = float(given) if kind is float and type(given) is int else given
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UserError(f"{where} is {value!r}, not {names[kind]}", do=f"{item.metadata['help']}")
    if isinstance(value, str) and not value.isprintable():
        raise UserError(f"{where} is {value!r}", do="use printable characters only")
    if choices and value not in choices:
        words = ", ".join(map(_spelt, choices)) + (" or a number" if or_number else "")
        raise UserError(f"{where} is {value!r}", do=f"one of {words}")
    if item.metadata["at_least"] is not None and kind is not str:
        _check_range(value, item, where)
    return value


def choices_of(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """Return the choices that a field has, and whether a number is another one."""
    args = get_args(hint)
    if int not in args:
        return args, False
    return tuple(choice for arg in args for choice in get_args(arg)), True


def _spelt(choice: str | bool) -> str:
    """Return a choice as it is typed."""
    return choice if isinstance(choice, str) else str(choice).lower()


def _check_range(value: Any, item: Field[Any], where: str) -> None:
    least, below = item.metadata["at_least"], item.metadata["below"]
    if not (_MOST if below is None else below) > value >= least:
        most = f"the most is {_MOST:g}" if below is None else f"it has to be below {below:g}"
        bound = f"the least is {least:g}" if value < least else most
        raise UserError(f"{where} is {str(value)[:40]}, {bound}", do=item.metadata["help"])
