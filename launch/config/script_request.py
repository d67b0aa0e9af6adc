"""Requests to run a script: checks of the script and its arguments, and its configuration."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.config.resolve import resolve_sections
from rundir.config import SCRIPT_SECTIONS, RunConfig, ScriptConfig, Sources
from rundir.errors import UserError

_LONGEST_NAME = 40  # characters of a run's name, which is part of file names


def is_script(word: str) -> bool:
    """Return whether the first word of a command line names a script and not a profile."""
    return word.endswith(".py")


def read_script(path: str, args: Sequence[str], preload: Sequence[str]) -> ScriptConfig:
    """Return the configuration of the script at `path`, which is compiled but not run.

    Each item of `preload` is a module name or several joined by commas. Raises UserError if the
    script cannot be read or compiled, or if an argument or a name is invalid.
    """
    absolute = Path.cwd() / Path(path).expanduser()
    try:
        compile(absolute.read_bytes(), str(absolute), "exec", dont_inherit=True)
    except OSError as error:
        raise UserError(
            f"cannot read the script {absolute}: {error.strerror}", do="./start.sh SCRIPT.py ARGS"
        ) from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        what = f"line {line}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UserError(f"{absolute}: {what}", do=f"python -m py_compile {path}") from error
    for word in (str(absolute), *args):
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise UserError(f"{word!a} is not UTF-8", do="give it another name")
    names = [name.strip() for words in preload for name in words.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.removeprefix("-").split(".")):
            raise UserError(f"--preload {name!r} names no module", do="--preload NAME,-NAME")
    return ScriptConfig(path=str(absolute), args=tuple(args), preload=tuple(names))


def resolve_script(
    script: ScriptConfig, settings: Sequence[str], environ: Mapping[str, str]
) -> tuple[RunConfig, Sources]:
    """Return the configuration of a run of `script`, and the source of each value.

    Raises UserError for a setting that does not apply to scripts, or that `resolve` would reject.
    """
    for setting in settings:
        section = setting.strip().partition(".")[0]
        if section not in SCRIPT_SECTIONS:
            raise UserError(
                f"--set {setting} means nothing to a script",
                do=f"{Path(script.path).name} has options of its own: put them after its name; "
                f"Airlock's begin with {' or '.join(SCRIPT_SECTIONS)}",
            )
    values, sources = resolve_sections(SCRIPT_SECTIONS, ({}, "default"), settings, environ)
    if sources["launch.needs_gpu"] == "default":
        values["launch"] = dataclasses.replace(values["launch"], needs_gpu=False)
        sources["launch.needs_gpu"] = "a script says itself what it needs"
    sources |= {"script.path": "command line", "script.args": "command line"}
    sources["script.preload"] = "option --preload" if script.preload else "default"
    return RunConfig(profile=_name(script), script=script, **values), sources


def _name(script: ScriptConfig) -> str:
    """Return the name of the script's runs: its file name, made safe for a folder name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(script.path).stem)[:_LONGEST_NAME].strip("-.") or (
        "script"
    )
