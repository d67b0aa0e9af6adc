"""Requests to run a script: checks of the script and its arguments, and its configuration."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.config.setting_values import resolve_sections
from rundir.config import SCRIPT_SECTIONS, RunConfig, ScriptConfig, Sources
from rundir.errors import UserError
from rundir.paths import ROOT

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
    return _checked(ScriptConfig(path=str(absolute), args=tuple(args)), path, preload)


def read_module(name: str, args: Sequence[str], preload: Sequence[str]) -> ScriptConfig:
    """Return the configuration of a module, found where `python -m` in this folder would find it.

    No package that contains it is imported. Raises UserError as `read_script`, and if there is no
    such module.
    """
    if is_script(name) or "/" in name:
        raise UserError(f"-m takes the name of a module, and {name} is a file", do=_as_typed(name))
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"-m {name!r} names no module", do="./start.sh -m PACKAGE.MODULE ARGS")
    here = [] if os.environ.get("PYTHONSAFEPATH") else [Path.cwd()]
    file = find_module(name, [*here, *(Path(entry) for entry in sys.path if entry != str(ROOT))])
    if file is None:
        raise UserError(
            f"there is no module {name} in {Path.cwd()}, nor among the installed ones",
            do=f"cd to the folder that holds {name.partition('.')[0]}, and type it again",
        )
    script = ScriptConfig(path=str(file), module=name, args=tuple(args))
    return _checked(script, str(file), preload)


def find_module(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the file that `python -m name` runs with `folders` as its path, or None."""
    *packages, last = name.split(".")
    for part in packages:
        regular = [root / part for root in folders if (root / part / "__init__.py").is_file()]
        folders = regular[:1] or [root / part for root in folders if (root / part).is_dir()]
    for folder in folders:
        package, file = folder / last, folder / f"{last}.py"
        if (package / "__init__.py").is_file() or not file.is_file():
            file = package / "__main__.py"
        if file.is_file():
            return file
    return None


def _as_typed(name: str) -> str:
    """Return the command to type for a file that was named as a module."""
    if "/" in name or Path(name).exists():
        return f"./start.sh {shlex.quote(name)}"
    return f"./start.sh -m {name.removesuffix('.py')}"


def _checked(script: ScriptConfig, path: str, preload: Sequence[str]) -> ScriptConfig:
    """Compile the script at `script.path`, typed as `path`; return it with its `preload`."""
    absolute = Path(script.path)
    try:
        compile(absolute.read_bytes(), str(absolute), "exec", dont_inherit=True)
    except OSError as error:
        raise UserError(
            f"cannot read the script {absolute}: {error.strerror}", do="./start.sh SCRIPT.py ARGS"
        ) from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        what = f"line {line}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UserError(
            f"{absolute}: {what}", do=f"python -m py_compile {shlex.quote(str(path))}"
        ) from error
    for word in (str(absolute), *script.args):
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise UserError(f"{word!a} is not UTF-8", do="give it another name")
    names = [name.strip() for words in preload for name in words.split(",") if name.strip()]
    names = [name for name in names if name != "auto"]
    for name in names:
        if not all(part.isidentifier() for part in name.removeprefix("-").split(".")):
            raise UserError(f"--preload {name!r} names no module", do="--preload NAME,-NAME")
    return dataclasses.replace(script, preload=tuple(names))


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
    """Return the name of the script's runs: its file's or module's, made safe for a folder."""
    name = script.module or Path(script.path).stem
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:_LONGEST_NAME].strip("-.") or ("script")
