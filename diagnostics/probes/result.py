"""The result of a diagnostic: a line for each check, and under a failed one what to type next."""

from __future__ import annotations

import faulthandler
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NoReturn

import click

from machine.memory.limits import is_out_of_memory
from machine.memory.process_memory import Peaks, high_water
from rundir.errors import ExitCode, UserError
from rundir.finding import Figure, Finding
from rundir.paths import ROOT

_MAX_MESSAGE_CHARACTERS = 400
_OUT_OF_MEMORY = "./airlock plan PROFILE   # what it takes; and see `free -h`, `ulimit -v`"


class Findings:
    """Collects findings and prints each as it arrives, so that a later hang hides nothing."""

    def __init__(self, diagnostic: str, *, as_json: bool) -> None:
        self._diagnostic, self._as_json = diagnostic, as_json
        self._findings: list[Finding] = []
        self._advice = ""
        self._begun = time.monotonic()
        self._peaks = Peaks(os.getpid())

    @property
    def all_ok(self) -> bool:
        """True if no check has failed so far."""
        return all(finding.ok for finding in self._findings)

    def note_memory(self) -> None:
        """Record the memory of this process and its children; to be called while they live."""
        self._peaks.look()

    def add(self, finding: Finding) -> None:
        """Record a finding and print it, without advice that repeats the previous one."""
        self.note_memory()
        self._findings.append(finding)
        text = f": {finding.text}" if finding.text else ""
        click.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check}{text}")
        if finding.warning:
            click.echo(f"      warning: {finding.warning}")
        if finding.level != "ok" and finding.do and finding.do != self._advice:
            click.echo(f"  → {finding.do}")
            self._advice = finding.do

    @contextmanager
    def reported(self, check: str, do: str) -> Iterator[None]:
        """Turn any exception in the block into a failed finding, and finish."""
        try:
            yield
        except UserError as error:
            self.add(Finding(check=check, ok=False, text=str(error.args[0]), do=error.do))
            self.finish()
        except Exception as error:  # noqa: BLE001 - whatever breaks a check is to be reported
            more = _OUT_OF_MEMORY if is_out_of_memory(error) else do
            self.add(Finding(check=check, ok=False, text=last_line(error), do=more))
            self.finish()

    def finish(self, line: str = "") -> NoReturn:
        """Exit with 0, or with 4 if a check failed; `line` is the summary if none did.

        With `--json` one object is printed, as the last line.
        """
        self.note_memory()
        seconds, peaks = time.monotonic() - self._begun, self._peaks
        click.echo(f"{seconds:.1f} s, peak RSS {peaks.rss_text}, VmPeak {peaks.vm_text}")
        if self._as_json:
            summary = {
                "diagnostic": self._diagnostic,
                "ok": self.all_ok,
                "line": self._line(line),
                "seconds": round(seconds, 3),
                "peak_rss_bytes": peaks.rss_bytes,
                "vm_peak_bytes": peaks.vm_bytes,
                "findings": list(map(_row, self._findings)),
            }
            click.echo(json.dumps(summary, allow_nan=False))
        sys.exit(int(ExitCode.DONE if self.all_ok else ExitCode.PREFLIGHT))

    def _line(self, line: str) -> str:
        """Return the first failed finding, or else `line`, or the number of checks."""
        red = next((finding for finding in self._findings if not finding.ok), None)
        if red is not None:
            return f"{red.check}: {red.text}".partition("\n")[0]
        return line or f"{len(self._findings)} checks"


def _row(finding: Finding) -> dict[str, Any]:
    row = asdict(finding)
    row["do"] = "" if finding.level == "ok" else finding.do
    row["figures"] = {key: _finite(value) for key, value in finding.figures.items()}
    return row


def _finite(value: Figure) -> Figure | list[float | None]:
    """Return `value` in a form that JSON can hold: NaN and infinities become null."""
    if isinstance(value, list):
        return [None if isinstance(x, float) and not math.isfinite(x) else x for x in value]  # type: ignore[return-value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def last_line(error: BaseException) -> str:
    """Format an exception like the last line of a traceback, its message joined into one line."""
    message = " ".join(str(error).split())[:_MAX_MESSAGE_CHARACTERS]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def install_command() -> str:
    """Return the command that installs the pinned packages into this Python."""
    requirements = shlex.quote(str(ROOT / "requirements.txt"))
    return f"{shlex.quote(sys.executable)} -m pip install -r {requirements}"


def check_device_command() -> str:
    """Return the command that tells whether the device is at fault rather than the code."""
    root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
    return f"cd {root} && {python} -m diagnostics.basic   # is it the device?"


def end_after(timeout_s: float) -> None:
    """Print every thread's stack and exit with 1 if this process still runs after `timeout_s`.

    A C thread does it, so that a driver that never responds cannot prevent it.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True)


def peak_memory_bytes(device: Any) -> int:
    """Return the peak memory that torch held on a GPU, or that this process had resident on CPU."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return high_water("self").get("VmHWM", 0)
