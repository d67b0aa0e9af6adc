"""What was typed: this process's command, or that of a run, to be repeated in advice with changes.

Only the shell knows which script was called; it leaves the name in AIRLOCK_SCRIPT. Advice on an old
run keeps its data, settings and variables, and the script that was typed.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from rundir.config import SECTIONS
from rundir.errors import UserError
from rundir.paths import ROOT, RunDir, find_run, runs_folder, shown

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
_PLAIN = ["python", "-m", "train"]  # as runs of one process were recorded once
_BEGIN = ("--resume", "--again", "--demo")  # how a run begins: one that goes on begins otherwise
_STARTS_NOTHING = ("--dry-run", "--prepare-only")
_FLAGS = ("--demo", "--force", "--monitor", "--plain", *_STARTS_NOTHING)  # options without a value
_OF_QUESTION = {
    "plan": ("--num-gpus", "--data", "--set"),
    "preflight": ("--num-gpus", "--set"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command: the variables before it, its program with a subcommand, and its words."""

    variables: Mapping[str, str]
    program: str
    words: Sequence[str]

    def __str__(self) -> str:
        values = "".join(f"{name}={shlex.quote(value)} " for name, value in self.variables.items())
        return f"{values}{self.program} {shlex.join(self.words)}".rstrip()

    def without(self, *options: str) -> Command:
        """Return the command without some options and their values."""
        kept = [group for group in _groups(self.words) if _option(group) not in options]
        return replace(self, words=[word for group in kept for word in group])

    def for_profile(self, profile: str, instead_of: str) -> Command:
        """Return the command with `profile` for the word `instead_of`, or first if that is none."""
        words = list(self.words)
        place = words.index(instead_of) if instead_of in words else 0
        words[place : place + (instead_of in words)] = [profile]
        return replace(self, words=words)

    def again(self) -> str:
        """Return the command that starts such a run anew."""
        return str(self.without(*_STARTS_NOTHING))

    def resumed(self, run: RunDir) -> str:
        """Return the command that goes on from the last checkpoint of `run`."""
        kept = self.without(*_BEGIN, *_STARTS_NOTHING)
        return str(replace(kept, words=[*kept.words, "--resume", shown(run.path)]))

    def question(self, command: str) -> str:
        """Return the command `plan` or `preflight` about such a run."""
        kept = [name for name in self.variables if not name.startswith("RUN_")]
        options = {_option(group) for group in _groups(self.words) if not _is_word(group)}
        words = self.without(*options.difference(_OF_QUESTION[command])).words
        variables = {name: self.variables[name] for name in kept}
        program = f"{console_program()} {command}"
        return str(Command(variables=variables, program=program, words=words))

    def pinned(self, runs: Mapping[str, RunDir | None]) -> Command:
        """Return the command with the run in place of `latest`, which soon is another.

        `runs` are those that options such as --resume stand for.
        """
        words: list[str] = []
        for group in _groups(self.words):
            run = runs.get(_option(group))
            is_latest = (group[0].partition("=")[2] or "".join(group[1:])) in ("", "latest")
            words += [_option(group), shown(run.path)] if run and is_latest else group
        program = parsed(str(self), "").program  # as it can be typed from here
        return replace(self, program=program, words=words).without(*_STARTS_NOTHING)


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
    command = typed(instead_of or profile, environ)
    command = command.without(*(_OPTION_OF[name] for name in changes if name in _OPTION_OF))
    command = command.for_profile(profile, instead_of) if instead_of else command
    kept = {name: value for name, value in command.variables.items() if name not in changes}
    return str(replace(command, variables={**kept, **changes}))


def typed(profile: str, environ: Mapping[str, str] | None = None) -> Command:
    """Return the command that was typed; where this process is not one, what trains `profile`."""
    called, args = Path(sys.argv[0]), sys.argv[1:]
    start, own = start_program(environ), variables(environ)
    if called.name != "__main__.py" or called.parent.name != "launch" or not args:
        return Command(variables=own, program=start, words=[profile])
    program = start if args[0] == "run" else f"{console_program(environ)} {args[0]}"
    return Command(variables=own, program=program, words=args[1:])


def typed_run(run: RunDir, profile: str = "") -> Command:
    """Return what was typed to start `run`; where that is not known, what starts `profile`."""
    try:
        return parsed(run.command.read_text(encoding="utf-8").splitlines()[0], profile)
    except (OSError, IndexError, ValueError):  # an older run, or one cut off by a full disk
        return parsed("", profile)


def parsed(line: str, profile: str) -> Command:
    """Return the parts of a command line. Raises ValueError if it is not whole."""
    words = shlex.split(line)
    variables = {}
    while words and re.match(r"[A-Z][A-Z0-9_]*=", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    if not words:
        return Command(variables={}, program=start_program(), words=[profile or "PROFILE"])
    if words[:3] == _PLAIN:
        words = [f"./{CONSOLE}", "run", "--plain", *words[3:]]
    num = 2 if Path(words[0]).name == CONSOLE else 1  # ./airlock run
    program = shlex.join([_here(words[0]), *words[1:num]])
    return Command(variables=variables, program=program, words=words[num:])


def _here(program: str) -> str:
    """Return a script as it can be typed from here: the run may have been started elsewhere."""
    own = ROOT / Path(program).name
    return program if Path(program).is_file() or not own.is_file() else str(own)


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


def _groups(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield each option with its value, and each other word."""
    rest = list(words)
    while rest:
        group = [rest.pop(0)]
        if not _is_word(group):
            has_value = "=" not in group[0] and group[0] not in _FLAGS
            if has_value and rest and not rest[0].startswith("--"):
                group.append(rest.pop(0))
        yield group


def _is_word(group: Sequence[str]) -> bool:
    return not group[0].startswith("--")


def _option(group: Sequence[str]) -> str:
    return group[0].partition("=")[0]
