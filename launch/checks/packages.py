"""Checks of the packages that this run needs beyond those of every run, and of trackers' keys."""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from launch.checks.context import Context, error, fine, warning
from launch.config.extra_packages import is_installed, missing
from launch.track.services import SERVICES, services_in
from rundir.finding import Finding

PACKAGES = "packages"

TRACKING = "tracking"
_WITHOUT_KEY = ("offline", "dryrun", "disabled")  # values of WANDB_MODE
_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def check_tracking(context: Context) -> list[Finding]:
    """Return a finding for each requested, installed tracker: a warning if it lacks its key."""
    services = services_in(context.config.train.report_to)
    return [_tracker(name, context.environ) for name in services if is_installed(name)]


def _tracker(name: str, environ: Mapping[str, str]) -> Finding:
    if name == "wandb" and not _has_key(environ):
        text = "W&B has no API key here: metrics stay in the run folder, for `wandb sync`"
        return warning(TRACKING, text, "wandb login, or WANDB_MODE=offline if that is meant")
    return fine(TRACKING, f"{SERVICES[name]} gets the metrics")


def _has_key(environ: Mapping[str, str]) -> bool:
    """Return whether W&B needs no key, or has one in the environment or in netrc."""
    if environ.get("WANDB_MODE") in _WITHOUT_KEY or any(environ.get(key) for key in _KEYS):
        return True
    host = urlsplit(environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - never raises
    for path in (environ.get("NETRC"), home / ".netrc", home / "_netrc"):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if path and netrc.netrc(str(path)).authenticators(host):
                return True
    return False


def check_packages(context: Context) -> list[Finding]:
    """Return an error for each package or compiler that would be missed during the start."""
    if context.config.script is not None:
        return []
    findings = [error(PACKAGES, text, do) for text, do in missing(context.config)]
    return findings or [fine(PACKAGES, "all that this configuration needs is installed")]
