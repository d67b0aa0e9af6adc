"""The request typed on the command line, and its rendering as a command with changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine.typed import Command, console_program, start_program, variables
from rundir.config import ScriptConfig

RUN, PLAN, PLAIN = "./start.sh", "./airlock plan", "./airlock run --plain"
_VARIABLE_OF = {"num_gpus": "NUM_GPUS"}  # which an option of that name overrides
_OF_TESTS = ("RUN_IMPORT_TEST", "RUN_SINGLE_GPU_TEST")
_OF_RUNS_ALONE = ("max_restarts", "on_event", "resume", "again", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of a command: a run, a plan, or the checks before a run."""

    profile: str
    num_gpus: int | None = None
    data: str | None = None
    gpu: str | None = None  # for a plan: a name in launch/plan/catalogue.toml
    max_restarts: int | None = None
    on_event: str | None = None  # a shell command
    settings: Sequence[str] = ()
    resume: str | None = None
    name: str | None = None  # of the run
    again: str | None = None  # a run, or an exported model, whose settings are the profile's
    force: bool = False  # start despite objections
    demo: bool = False  # a few steps on data that come with the clone
    script: ScriptConfig | None = None  # what to run instead of training `profile`

    def all_settings(self) -> list[str]:
        """Return the settings, including those given as options of their own."""
        of_options = {
            "data.path": self.data,
            "launch.max_restarts": self.max_restarts,
            "launch.on_event": self.on_event,
        }
        settings = [f"{key}={value}" for key, value in of_options.items() if value is not None]
        return [*self.settings, *settings]

    def command(self, program: str, changes: Mapping[str, str], **options: str | int) -> str:
        """Return what to type: `arguments` after the script that was typed, and its variables."""
        args = self.arguments(program, changes, **options)
        decided = [_VARIABLE_OF[name] for name in options if name in _VARIABLE_OF]
        decided += _OF_TESTS if program == PLAN else []
        kept = variables(without=decided)
        return str(Command(variables=kept, program=_program(program), words=args))

    def arguments(
        self, program: str, changes: Mapping[str, str], **options: str | int
    ) -> list[str]:
        """Return the arguments for RUN, PLAIN or PLAN, some settings and options changed."""
        kept = [typed for typed in self.settings if typed.partition("=")[0].strip() not in changes]
        own = {
            "num_gpus": self.num_gpus,
            "gpu": self.gpu,
            "data": self.data,
            "max_restarts": self.max_restarts,
            "on_event": self.on_event,
            "resume": self.resume,
            "again": self.again,
            "name": self.name,
        } | options
        last = {name: own.pop(name) for name in _OF_RUNS_ALONE}
        last = {} if program == PLAN else last
        profile = str(own.pop("profile", self.profile))
        words = [*([profile] if profile else []), *_options(own)]
        for setting in [*kept, *(f"{key}={value}" for key, value in changes.items())]:
            words += ["--set", setting]
        words += _options(last)
        starts_demo = self.demo and program != PLAN and last.get("resume") is None
        words += ["--demo"] if starts_demo else []
        if self.script is not None:
            words += [word for name in self.script.preload for word in ("--preload", name)]
            module = self.script.module
            words += ["-m", module] if module else [_relative(self.script.path)]
            words += self.script.args
        return words


def _program(program: str) -> str:
    if program == RUN:
        return start_program()
    return f"{console_program()} {'plan' if program == PLAN else 'run --plain'}"


def _relative(path: str) -> str:
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _options(values: Mapping[str, str | int | None]) -> list[str]:
    return [
        word
        for name, value in values.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
