"""One rung as a process of its own: watched, measured, and ended after too long a silence."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.checks.ended import how_it_ended, last_words, quoted
from launch.checks.rungs import Rung
from launch.config.request import Request
from machine.memory.peak_memory import Peaks
from machine.processes import children
from machine.processes.signals import Interrupted, Signals
from rundir.paths import runs_folder
from rundir.scratch import scratch

TRIALS = ".check-"  # prefix of the names of folders for short runs, beside those of real ones
_POLL_S = 0.05
_GRACE_S = 30.0  # for a rung to end by itself, with its stacks, after its timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbed:
    """The result of a rung; `findings` are rows as in rundir/finding.py."""

    rung: Rung
    ok: bool
    line: str
    do: str
    seconds: float
    peaks: Peaks
    findings: Sequence[dict[str, Any]] = field(default_factory=list)
    last_words: str = ""  # of a rung that ended without a verdict


def climb(
    rung: Rung,
    request: Request,
    environ: Mapping[str, str],
    signals: Signals,
    timeout_s: float | None = None,
) -> Climbed:
    """Run a rung to its end. Raises Interrupted when a stop was requested."""
    longest_s = timeout_s or rung.timeout_s
    begun = time.monotonic()
    with scratch("check") as folder:
        log = folder / "output.log"
        with log.open("wb") as output:
            args = [*options_of(request), "--json", "--timeout-s", f"{longest_s:g}"]
            # Anything that a killed rung leaves in TMPDIR is removed with the folder.
            env = {**environ, "TMPDIR": str(folder)}
            child = children.start(rung.module, *args, env=env, output=output)
        peaks = Peaks(child.pid)
        try:
            is_silent = _wait(child, log, peaks, signals, longest_s + _GRACE_S)
        finally:
            if child.poll() is None:
                children.end(child)
            _remove_trials(child.pid)
        return _judge(
            rung,
            request,
            child.returncode,
            log,
            peaks,
            time.monotonic() - begun,
            is_silent=is_silent,
        )


def options_of(request: Request) -> list[str]:
    """Return the options of `request` that rungs and `airlock check` have in common."""
    own = {"profile": request.profile, "data": request.data, "num-gpus": request.num_gpus}
    options = [f"--{name}={value}" for name, value in own.items() if value is not None]
    return [*options, *(f"--set={setting}" for setting in request.settings)]


def _wait(
    child: subprocess.Popen[bytes], log: Path, peaks: Peaks, signals: Signals, silent_s: float
) -> bool:
    """Wait for the child to end; return True if it is given up after `silent_s` without output."""
    size, spoke = 0, time.monotonic()
    while child.poll() is None:
        if signals.stop_asked:
            raise Interrupted
        peaks.look()
        now_size, now = log.stat().st_size, time.monotonic()
        if now_size != size:
            size, spoke = now_size, now
        if now - spoke > silent_s:
            return True
        time.sleep(_POLL_S)
    return False


def _remove_trials(pid: int) -> None:
    """Remove the folders of short runs that a rung has left behind."""
    for folder in runs_folder().glob(f"{TRIALS}{pid}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _judge(
    rung: Rung,
    request: Request,
    code: int,
    log: Path,
    peaks: Peaks,
    seconds: float,
    *,
    is_silent: bool,
) -> Climbed:
    text = log.read_text(encoding="utf-8", errors="replace")
    about: dict[str, Any] = {"rung": rung, "seconds": seconds, "peaks": peaks}
    summary = _summary(text)
    if summary is not None and not is_silent:
        red = next((row for row in summary["findings"] if not row["ok"]), None)
        is_ok = summary["ok"] and code == 0
        line = summary["line"] if is_ok or red else f"it found all right, and ended with {code}"
        return Climbed(
            ok=is_ok,
            line=line,
            do=red["do"] if red else alone(rung, request),
            findings=summary["findings"],
            **about,
        )
    how = "it printed nothing any more, and was ended" if is_silent else f"it {how_it_ended(code)}"
    words = quoted(last_words(text))
    return Climbed(ok=False, line=how, do=alone(rung, request), last_words=words, **about)


def alone(rung: Rung, request: Request) -> str:
    """Return the command that runs one rung again."""
    return f"./airlock check {shlex.join([rung.name, *options_of(request)])}"


def _summary(text: str) -> dict[str, Any] | None:
    """Return the object that a rung prints at its end, or None; a line of stderr may follow it."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"diagnostic"'):
            summary: dict[str, Any] = json.loads(line)
            return summary
    return None
