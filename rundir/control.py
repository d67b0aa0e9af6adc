"""Requests to a run: an empty file in its control folder, so that anyone can ask and see."""

from __future__ import annotations

from typing import Literal

from rundir.paths import RunDir

Request = Literal["stop", "pause", "resume", "trace"]


def ask(run: RunDir, request: Request) -> None:
    """Ask the run to stop, pause or resume, which it does at its next step; asking twice is once.

    Asked for a `trace` each rank writes down its last collectives at once (train/rank/watchdog.py).
    """
    (run.control / request).touch()


def is_asked(run: RunDir, request: Request) -> bool:
    """Whether that request stands."""
    return (run.control / request).exists()
