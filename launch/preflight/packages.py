"""What this run needs beside what every run does."""

from __future__ import annotations

from launch.packages import missing
from launch.preflight.ground import Ground, error, fine
from rundir.finding import Finding

NAME = "packages"


def check(ground: Ground) -> list[Finding]:
    """An error for each package, or compiler, that would be missed in the middle of a start."""
    if ground.config.script is not None:
        return []
    found = [error(NAME, text, do) for text, do in missing(ground.config)]
    return found or [fine(NAME, "all that this configuration needs is installed")]
