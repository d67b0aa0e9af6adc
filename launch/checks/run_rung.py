"""A rung as a process of its own: watched, measured, and ended after too long a silence.

All that runs rungs does it here: the ladder, the climb, and the tests before a training.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.checks.rungs import Rung
from launch.config.request import Request
from machine.memory.process_memory import Peaks
from machine.processes import children
from machine.processes.signals import Interrupted, Signals
from rundir.atomic import scratch
from rundir.paths import runs_folder

SHORT_RUNS = ".check-"  # prefix of the names of folders for short runs, beside those of real ones
_SUMMARY = '{"diagnostic"'  # how the object begins that a rung prints at its end
_POLL_S = 0.05
_GRACE_S = 30.0  # for a rung to end by itself, with its stacks, after its timeout
_MAX_LINES = 12
_HINTS = {signal.SIGKILL: " (out of memory? see `dmesg`)", signal.SIGILL: " (wrong CPU type?)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """The result of a rung; `findings` are rows as in rundir/finding.py."""

    rung: Rung
    code: int
    seconds: float
    peaks: Peaks
    ok: bool
    line: str
    do: str = ""  # what the first failed finding says
    findings: Sequence[dict[str, Any]] = field(default_factory=list)
    last_words: str = ""  # of a rung that ended without a verdict


def run_rung(
    rung: Rung,
    options: Sequence[str],
    environ: Mapping[str, str],
    signals: Signals,
    *,
    timeout_s: float | None = None,
    show: Callable[[str], object] = lambda _: None,
) -> RungResult:
    """Run a rung to its end, and `show` each line that it prints for people as it comes.

    Raises Interrupted when a stop was requested.
    """
    longest_s = timeout_s or rung.timeout_s
    begun = time.monotonic()
    with scratch("check") as folder:
        log = folder / "output.log"
        with log.open("wb") as output:
            # Anything that a killed rung leaves in TMPDIR is removed with the folder.
            env = {**environ, "TMPDIR": str(folder)}
            args = [*options, "--json", "--timeout-s", f"{longest_s:g}"]
            child = children.start(rung.module, *args, env=env, output=output)
        peaks = Peaks(child.pid)
        try:
            is_silent = _wait(child, log, peaks, signals, longest_s + _GRACE_S, show)
        finally:
            if child.poll() is None:
                children.end(child)
            _remove_short_runs(child.pid)
        text = log.read_text(encoding="utf-8", errors="replace")
    code = child.returncode
    about: dict[str, Any] = {"rung": rung, "code": code, "peaks": peaks}
    about["seconds"] = time.monotonic() - begun
    summary = _summary(text)
    if summary is None or is_silent:
        how = "printed nothing any more, and was ended" if is_silent else how_it_ended(code)
        return RungResult(ok=False, line=f"it {how}", last_words=quoted(last_words(text)), **about)
    red = next((row for row in summary["findings"] if not row["ok"]), None)
    is_ok = summary["ok"] and code == 0
    return RungResult(
        ok=is_ok,
        line=summary["line"] if is_ok or red else f"it found all right, and ended with {code}",
        do=red["do"] if red else "",
        findings=summary["findings"],
        **about,
    )


def options_of(request: Request) -> list[str]:
    """Return the options of `request` that rungs and `airlock check` have in common."""
    own = {"profile": request.profile, "data": request.data, "num-gpus": request.num_gpus}
    options = [f"--{name}={value}" for name, value in own.items() if value is not None]
    return [*options, *(f"--set={setting}" for setting in request.settings)]


def alone(rung: Rung, request: Request) -> str:
    """Return the command that runs one rung again."""
    return f"./airlock check {shlex.join([rung.name, *options_of(request)])}"


def _wait(
    child: subprocess.Popen[bytes],
    log: Path,
    peaks: Peaks,
    signals: Signals,
    silent_s: float,
    show: Callable[[str], object],
) -> bool:
    """Wait for the child to end; return True if it is given up after `silent_s` without output."""
    spoke, cut_line = time.monotonic(), ""
    with log.open(encoding="utf-8", errors="replace") as printed:
        while True:
            has_ended = child.poll() is not None  # asked first: what it printed is then complete
            if signals.stop_asked and not has_ended:
                raise Interrupted
            peaks.look()
            if text := printed.read():
                spoke = time.monotonic()
            *lines, cut_line = (cut_line + text).split("\n")
            for line in lines:
                if not line.startswith(_SUMMARY):
                    show(line)
            if has_ended or time.monotonic() - spoke > silent_s:
                return not has_ended
            time.sleep(_POLL_S)


def _remove_short_runs(pid: int) -> None:
    """Remove the folders of short runs that a rung has left behind."""
    for folder in runs_folder().glob(f"{SHORT_RUNS}{pid}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _summary(text: str) -> dict[str, Any] | None:
    """Return the object that a rung prints at its end, or None; a line of stderr may follow it."""
    for line in reversed(text.splitlines()):
        if line.startswith(_SUMMARY):
            summary: dict[str, Any] = json.loads(line)
            return summary
    return None


def how_it_ended(code: int) -> str:
    """Return a verb phrase for an exit code, such as `killed the process: SIGKILL`."""
    if code >= 0:
        return f"ended the process with exit code {code}"
    number = signal.Signals(-code)
    return f"killed the process: {number.name}{_HINTS.get(number, '')}"


def last_words(log: str) -> list[str]:
    """Return the stacks that faulthandler wrote, from the top; without any, the last lines."""
    lines = [line for line in log.strip().splitlines() if "<frozen " not in line]
    for index, line in enumerate(lines):
        if line.startswith(("Timeout (", "Fatal Python error", "Current thread")):
            return lines[index : index + _MAX_LINES]
    return lines[-_MAX_LINES:]


def quoted(lines: list[str]) -> str:
    """Return lines of another program's output, indented to go below a text of ours."""
    return "".join(f"\n      | {line}" for line in lines)
