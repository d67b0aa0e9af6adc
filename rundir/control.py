"""Requests to a run: empty files in its control folder, so that anyone can make and see them."""

from __future__ import annotations

from typing import Literal

from rundir.paths import RunDir

Request = Literal["stop", "pause", "resume", "trace"]


def ask(run: RunDir, request: Request) -> None:
    """Ask the run to stop, pause or resume at its next step; asking twice counts once.

    When asked for a `trace`, each rank writes its last collectives at once
    (train/rank/watchdog.py).
    """
    (run.control / request).touch()


def is_asked(run: RunDir, request: Request) -> bool:
    """Return whether that request is pending."""
    return (run.control / request).exists()
