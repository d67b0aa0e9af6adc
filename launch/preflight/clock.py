"""The clock: names of runs, the order of logs, and certificates depend on it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from launch.preflight.ground import Ground, fine, warning
from rundir.finding import Finding
from rundir.paths import ROOT, RunDir, runs_folder
from rundir.status import read_status

NAME = "clock"
_BORN = 1_767_225_600  # 2026-01-01: this program is younger
_FILES_MARGIN_S = 3600.0  # of a file server's clock
_RUNS_MARGIN_S = 60.0
_DO = "sudo timedatectl set-ntp true, or `sudo date -s …`"


def check(_ground: Ground) -> list[Finding]:
    """A warning for a clock that is behind what was written earlier."""
    found = list(_behind(time.time()))
    return found or [fine(NAME, time.strftime("%Y-%m-%d %H:%M:%S %Z"))]


def _behind(now: float) -> Iterator[Finding]:
    newest = max((path.stat().st_mtime for path in (ROOT / "launch").glob("*.py")), default=0.0)
    written = max(newest - _FILES_MARGIN_S, _BORN)
    if now < written:
        text = f"it says {_text(now)}, before this program was written ({_text(written)})"
        yield warning(NAME, f"{text}: certificates and the names of runs will be wrong", _DO)
        return
    latest = RunDir(runs_folder() / "latest")
    ahead_s = _last_word(latest) - now
    if ahead_s > _RUNS_MARGIN_S:
        text = f"it says {_text(now)}, {ahead_s:,.0f} s before the last word of the run"
        name = latest.path.resolve().name
        yield warning(NAME, f"{text} {name}: it was set back, or that machine's is ahead", _DO)


def _last_word(run: RunDir) -> float:
    try:
        return float(read_status(run)["updated_t"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _text(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
