"""What was typed, and how it can be said again with a change."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rundir.config import ScriptConfig

RUN, PLAN, PLAIN = "./start.sh", "./airlock plan", "python -m train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked for on the command line: of a run, of a plan, of what is checked before."""

    profile: str
    num_gpus: int | None = None
    data: str | None = None
    gpu: str | None = None  # a plan's: a name of launch/plan/catalogue.py
    max_restarts: int | None = None
    settings: Sequence[str] = ()
    resume: str | None = None
    force: bool = False  # start all the same
    script: ScriptConfig | None = None  # what to run instead of training `profile`

    def all_settings(self) -> list[str]:
        """The settings that its options come to."""
        of_options = {"data.path": self.data, "launch.max_restarts": self.max_restarts}
        found = [f"{key}={value}" for key, value in of_options.items() if value is not None]
        return [*self.settings, *found]

    def command(self, program: str, changes: Mapping[str, str], **options: str | int) -> str:
        """The command, RUN or PLAN, with settings changed and options replaced."""
        kept = [one for one in self.settings if one.partition("=")[0].strip() not in changes]
        own = {"num_gpus": self.num_gpus, "gpu": self.gpu, "data": self.data} | options
        words = [str(own.pop("profile", self.profile)), *_options(own)]
        for setting in [*kept, *(f"{key}={value}" for key, value in changes.items())]:
            words += ["--set", setting]
        if program == RUN:  # a plan knows nothing of these
            words += _options({"max_restarts": self.max_restarts, "resume": self.resume})
        return f"{program} {shlex.join(words)}"


def _options(values: Mapping[str, str | int | None]) -> list[str]:
    return [
        word
        for name, value in values.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
