"""The request typed on the command line, and its rendering as a command with changes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rundir.config import ScriptConfig

RUN, PLAN, PLAIN = "./start.sh", "./airlock plan", "python -m train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of a command: a run, a plan, or the checks before a run."""

    profile: str
    num_gpus: int | None = None
    data: str | None = None
    gpu: str | None = None  # for a plan: a name in launch/plan/catalogue.py
    max_restarts: int | None = None
    settings: Sequence[str] = ()
    resume: str | None = None
    force: bool = False  # start despite objections
    script: ScriptConfig | None = None  # what to run instead of training `profile`

    def all_settings(self) -> list[str]:
        """Return the settings, including those given as options of their own."""
        of_options = {"data.path": self.data, "launch.max_restarts": self.max_restarts}
        found = [f"{key}={value}" for key, value in of_options.items() if value is not None]
        return [*self.settings, *found]

    def command(self, program: str, changes: Mapping[str, str], **options: str | int) -> str:
        """Return the command line, of RUN or PLAN, with settings changed and options replaced."""
        kept = [one for one in self.settings if one.partition("=")[0].strip() not in changes]
        own = {"num_gpus": self.num_gpus, "gpu": self.gpu, "data": self.data} | options
        words = [str(own.pop("profile", self.profile)), *_options(own)]
        for setting in [*kept, *(f"{key}={value}" for key, value in changes.items())]:
            words += ["--set", setting]
        if program == RUN:  # a plan does not have these options
            words += _options({"max_restarts": self.max_restarts, "resume": self.resume})
        return f"{program} {shlex.join(words)}"


def _options(values: Mapping[str, str | int | None]) -> list[str]:
    return [
        word
        for name, value in values.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
