"""The services that metrics are to be reported to: installed, and W&B with a key."""

from __future__ import annotations

import contextlib
import importlib.util
import netrc
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from launch.preflight.ground import Ground, error, fine, warning
from launch.track.services import SERVICES, services_in
from rundir.finding import Finding

NAME = "tracking"
_WITHOUT_KEY = ("offline", "dryrun", "disabled")  # values of WANDB_MODE
_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def check(ground: Ground) -> list[Finding]:
    """An error for a service that is not installed; nothing where none is asked for."""
    return [_of(name, ground.environ) for name in services_in(ground.config.train.report_to)]


def _of(name: str, environ: Mapping[str, str]) -> Finding:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:  # at best a folder of that name, as W&B makes one
        text = f"train.report_to names {name}, which is not installed"
        return error(NAME, text, f"{sys.executable} -m pip install {name}")
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
