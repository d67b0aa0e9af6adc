"""What was typed to start a run, from its folder: to go on from it, or to start it again changed.

Advice on an old run keeps its data, settings and variables, and the script that was typed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from machine.typed import CONSOLE, assignments, console_program, start_program
from rundir.paths import ROOT, RunDir, shown

_PLAIN = ["python", "-m", "train"]  # as runs of one process were recorded once
_BEGIN = ("--resume", "--again", "--demo")  # how a run begins: one that goes on begins otherwise
_STARTS_NOTHING = ("--dry-run", "--prepare-only")
_FLAGS = ("--demo", "--force", "--monitor", "--plain", *_STARTS_NOTHING)  # options without a value
_OF_QUESTION = {
    "plan": ("--num-gpus", "--data", "--set"),
    "preflight": ("--num-gpus", "--set"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRun:
    """The variables, the program and the words with which a run was started."""

    variables: Mapping[str, str]
    program: str
    words: Sequence[str]

    def again(self) -> str:
        """Return the command that starts such a run anew."""
        return self._line(self._but(_STARTS_NOTHING))

    def resumed(self, run: RunDir) -> str:
        """Return the command that goes on from the last checkpoint of `run`."""
        kept = self._but((*_BEGIN, *_STARTS_NOTHING))
        return self._line([*kept, "--resume", shown(run.path)])

    def question(self, command: str) -> str:
        """Return the command `plan` or `preflight` about such a run."""
        kept = _OF_QUESTION[command]
        groups = (
            group for group in _groups(self.words) if _is_word(group) or _option(group) in kept
        )
        words = [word for group in groups for word in group]
        asked = {key: group for key, group in self.variables.items() if not key.startswith("RUN_")}
        return f"{assignments(asked)}{console_program()} {shlex.join([command, *words])}"

    def _but(self, options: Sequence[str]) -> list[str]:
        """Return the words without some options and their values."""
        return [
            word for group in _groups(self.words) if _option(group) not in options for word in group
        ]

    def _line(self, words: Sequence[str]) -> str:
        return f"{assignments(self.variables)}{self.program} {shlex.join(words)}".rstrip()


def typed_run(run: RunDir, profile: str = "") -> TypedRun:
    """Return what was typed to start `run`; where that is not known, what starts `profile`."""
    try:
        return _parsed(run.command.read_text(encoding="utf-8").splitlines()[0], profile)
    except (OSError, IndexError, ValueError):  # an older run, or one cut off by a full disk
        return _parsed("", profile)


def pinned(command: str, runs: Mapping[str, RunDir | None]) -> str:
    """Return a command with the run in place of `latest`, which soon is another.

    `runs` are those that options such as --resume stand for.
    """
    typed, words = _parsed(command, ""), []
    for group in _groups(typed.words):
        run = runs.get(_option(group))
        is_latest = (group[0].partition("=")[2] or "".join(group[1:])) in ("", "latest")
        words += [_option(group), shown(run.path)] if run and is_latest else group
    return replace(typed, words=words).again()


def _parsed(line: str, profile: str) -> TypedRun:
    """Return the parts of a command line. Raises ValueError if it is not whole."""
    words = shlex.split(line)
    variables = {}
    while words and re.match(r"[A-Z][A-Z0-9_]*=", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    if not words:
        return TypedRun(variables={}, program=start_program(), words=[profile or "PROFILE"])
    if words[:3] == _PLAIN:
        words = [f"./{CONSOLE}", "run", "--plain", *words[3:]]
    num = 2 if Path(words[0]).name == CONSOLE else 1  # ./airlock run
    program = shlex.join([_here(words[0]), *words[1:num]])
    return TypedRun(variables=variables, program=program, words=words[num:])


def _here(program: str) -> str:
    """Return a script as it can be typed from here: the run may have been started elsewhere."""
    own = ROOT / Path(program).name
    return program if Path(program).is_file() or not own.is_file() else str(own)


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
