"""The services that metrics are to be reported to: W&B wants a key."""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from launch.packages import is_installed
from launch.preflight.ground import Ground, fine, warning
from launch.track.services import SERVICES, services_in
from rundir.finding import Finding

NAME = "tracking"
_WITHOUT_KEY = ("offline", "dryrun", "disabled")  # values of WANDB_MODE
_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def check(ground: Ground) -> list[Finding]:
    """A warning for one that will not get there; nothing where none is asked for, or installed."""
    services = services_in(ground.config.train.report_to)
    return [_of(name, ground.environ) for name in services if is_installed(name)]


def _of(name: str, environ: Mapping[str, str]) -> Finding:
    if name == "wandb" and not _has_key(environ):
        text = "W&B has no API key here: metrics stay in the run folder, for `wandb sync`"
        return warning(NAME, text, "wandb login, or WANDB_MODE=offline if that is meant")
    return fine(NAME, f"{SERVICES[name]} gets the metrics")


def _has_key(environ: Mapping[str, str]) -> bool:
    """Whether W&B needs none, or has one in the environment or in netrc."""
    if environ.get("WANDB_MODE") in _WITHOUT_KEY or any(environ.get(key) for key in _KEYS):
        return True
    host = urlsplit(environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - never raises
    for path in (environ.get("NETRC"), home / ".netrc", home / "_netrc"):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if path and netrc.netrc(str(path)).authenticators(host):
                return True
    return False
