"""The command that was typed: script, arguments and variables, to be repeated in advice.

Only the shell knows which script was called; it leaves the name in AIRLOCK_SCRIPT.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from rundir.config import SECTIONS
from rundir.errors import UserError
from rundir.paths import ROOT, RunDir, find_run, runs_folder

START, CONSOLE = "start.sh", "airlock"

_OWN = ("CUDA_VISIBLE_DEVICES", "NUM_GPUS", "RUN_IMPORT_TEST", "RUN_SINGLE_GPU_TEST")
_BY_RULE = tuple(
    f"AIRLOCK_{section}_{item.name}".upper()
    for section, cls in SECTIONS.items()
    for item in fields(cls)
)
_READ = (*_OWN, *_BY_RULE, "AIRLOCK_RLIMIT_AS_GIB")
_PRESET_BY = {"start_single.sh": {"RUN_IMPORT_TEST": "1", "RUN_SINGLE_GPU_TEST": "1"}}
# The variable that decides the same as an option, so that one replaces the other.
_OPTION_OF = {"NUM_GPUS": "--num-gpus"}


def start_program(environ: Mapping[str, str] | None = None) -> str:
    """Return the program that starts a run, as it was typed: ./start_single.sh, ./airlock run."""
    script = _script(environ)
    if _kind(script) != CONSOLE:
        return shlex.quote(script) if script else _beside(script, START)
    return f"{shlex.quote(script)} run" if sys.argv[1:2] == ["run"] else _beside(script, START)


def console_program(environ: Mapping[str, str] | None = None) -> str:
    """Return Airlock's console command: the script that was typed, or the one that lies beside."""
    script = _script(environ)
    return shlex.quote(script) if _kind(script) == CONSOLE else _beside(script, CONSOLE)


def ls_runs() -> str:
    """Return the command that lists the folders of all runs."""
    return f"ls {shlex.quote(str(runs_folder()))}"


def run_called(name: str) -> RunDir:
    """Return the run called `name`. Raises UserError, with the command that lists all runs."""
    try:
        return find_run(name)
    except ValueError as error:
        raise UserError(str(error), do=ls_runs()) from error


def pip_install(package: str) -> str:
    """Return the command that installs a package, as a requirement, beside those of Airlock."""
    return f'{shlex.quote(sys.executable)} -m pip install "{package}"'


def variables(
    environ: Mapping[str, str] | None = None, without: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables that decide about a run, but those that the script presets."""
    own = os.environ if environ is None else environ
    preset = _PRESET_BY.get(Path(_script(own)).resolve().name, {})
    return {
        name: own[name]
        for name in _READ
        if own.get(name, "").strip() and own[name] != preset.get(name) and name not in without
    }


def assignments(values: Mapping[str, str]) -> str:
    """Return variables as they stand before a command in a shell, with a space behind; or ""."""
    return "".join(f"{name}={shlex.quote(value)} " for name, value in values.items())


def again(
    profile: str,
    changes: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    instead_of: str = "",
) -> str:
    """Return the command that was typed, with variables changed.

    `profile` takes the place of the word `instead_of`, if that is given. Where this process is not
    one that a user has typed, the command is that which trains `profile`.
    """
    changes = changes or {}
    kept = variables(environ, tuple(changes))
    return assignments({**kept, **changes}) + _words(profile, changes, environ, instead_of)


def _words(
    profile: str,
    changes: Mapping[str, str],
    environ: Mapping[str, str] | None,
    instead_of: str,
) -> str:
    program, args = Path(sys.argv[0]), _with_profile(sys.argv[1:], profile, instead_of)
    replaced = [_OPTION_OF[name] for name in changes if name in _OPTION_OF]
    if program.name != "__main__.py" or program.parent.name != "launch" or not args:
        return f"{start_program(environ)} {shlex.quote(profile)}"
    if args[0] == "run":
        return " ".join([start_program(environ), *map(shlex.quote, _without(args[1:], replaced))])
    return " ".join([console_program(environ), *map(shlex.quote, _without(args, replaced))])


def _with_profile(args: list[str], profile: str, instead_of: str) -> list[str]:
    if not instead_of:
        return args
    if instead_of not in args:  # it was not typed, but the default
        return [*args[:1], profile, *args[1:]]
    place = args.index(instead_of)
    return [*args[:place], profile, *args[place + 1 :]]


def _without(args: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the arguments without some options and their values."""
    words, is_value = [], False
    for word in args:
        if not is_value and word not in options:
            words += [word] if word.partition("=")[0] not in options else []
        is_value = not is_value and word in options
    return words


def _script(environ: Mapping[str, str] | None) -> str:
    return (os.environ if environ is None else environ).get("AIRLOCK_SCRIPT", "")


def _kind(script: str) -> str:
    """Return CONSOLE or START, whatever links to it are called."""
    return CONSOLE if script and Path(script).resolve().name == CONSOLE else START


def _beside(script: str, name: str) -> str:
    """Return the script `name` of this clone as it can be typed from here."""
    if not script:  # started as a module, from the root
        return f"./{name}"
    beside = f"{script.rpartition('/')[0] or '.'}/{name}"
    return shlex.quote(beside if Path(beside).is_file() else str(ROOT / name))
