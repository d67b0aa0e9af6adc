"""Requests to a run: files in its control folder, so that anyone can make and see them.

`stop` and `pause` stand as long as their file is there. The others are done once, and then their
file is gone: `save`, or `save.ID` for an answer with that ID; a file may hold a value.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from rundir.atomic import write_text
from rundir.config import TrainConfig
from rundir.paths import RunDir

Request = Literal["stop", "pause", "resume", "trace", "save", "evaluate", "set", "profile"]

# What the ranks do between two steps. `trace`, the last collectives, is answered at once by a
# thread of theirs (ranks/watchdog.py).
BETWEEN_STEPS = ("stop", "pause", "resume", "save", "evaluate", "set", "profile")

# The settings that may change while a run trains: none of them changes what a step does.
CHANGEABLE = (
    "train.log_every_steps",
    "train.eval_every_steps",
    "train.checkpoint_every_steps",
    "train.keep_checkpoints",
)
_ALL = ", ".join(CHANGEABLE)

_BY_HAND = "stop-by-hand"  # no request: the signal that follows is one

MOST_TRACED_STEPS = 100  # a trace of more is larger than any viewer takes


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One file of the control folder: the request, the id that its answer is to have, its value."""

    request: str
    id: str
    value: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.request}.{self.id}" if self.id else self.request


def ask(run: RunDir, request: Request) -> None:
    """Ask the run to do something at its next step; asking twice counts once.

    Raises OSError. When asked for a `trace`, each rank writes its last collectives at once
    (ranks/watchdog.py).
    """
    (run.control / request).touch()


def note_stop_by_hand(run: RunDir) -> None:
    """Note that the SIGTERM that follows is a person's, no scheduler's. Raises OSError."""
    (run.control / _BY_HAND).touch()


def is_stop_by_hand(run: RunDir) -> bool:
    """Return whether a person has had SIGTERM sent to the run's launcher."""
    return (run.control / _BY_HAND).exists()


def ask_once(run: RunDir, request: Request, value: str = "") -> ControlRequest:
    """Make a request of its own, whose answer, a `control` event, has its id. Raises OSError."""
    made = ControlRequest(request, secrets.token_hex(4), value)
    write_text(run.control / made.name, value, durable=False)
    return made


def is_asked(run: RunDir, request: Request) -> bool:
    """Return whether that request is pending."""
    return (run.control / request).exists()


def withdraw(run: RunDir, name: str) -> bool:
    """Remove a request; return False if it is not there (any more). Raises OSError."""
    try:
        (run.control / name).unlink()
    except FileNotFoundError:
        return False
    return True


def pending(run: RunDir) -> list[ControlRequest]:
    """Return the requests that the ranks have to look at between steps, by name.

    A folder or a file that cannot be read holds no request.
    """
    try:
        names = sorted(os.listdir(run.control))  # noqa: PTH208 - at every step: no Path for each
    except OSError:
        return []
    requests = []
    for name in names:
        request, _, id_ = name.partition(".")
        if request in BETWEEN_STEPS:
            try:
                value = (run.control / name).read_text(encoding="utf-8")
            except (OSError, ValueError):  # withdrawn meanwhile, or no text
                continue
            requests.append(ControlRequest(request, id_, value.strip()))
    return requests


def changed(settings: TrainConfig, text: str) -> tuple[TrainConfig, str]:
    """Return the settings with `train.NAME=VALUE` applied, and NAME.

    Raises ValueError for one that may not change while a run trains, or a wrong value.
    """
    key, _, value = (part.strip() for part in text.partition("="))
    if key not in CHANGEABLE:
        raise ValueError(f"{key} cannot change while a run trains; these can: {_ALL}")
    name = key.partition(".")[2]
    least = next(item.metadata["at_least"] for item in fields(settings) if item.name == name)
    if not value.isdecimal() or int(value) < least:
        raise ValueError(f"{key} is {value!r}, not a whole number of at least {least}")
    change: dict[str, Any] = {name: int(value)}
    return replace(settings, **change), name
