"""What a diagnostic found: a line for each check, and under a red one what to type next."""

from __future__ import annotations

import faulthandler
import json
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import NoReturn

import click

from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.finding import Figure, Finding
from rundir.paths import ROOT

_MAX_MESSAGE_CHARACTERS = 400


class Findings:
    """Collects findings and prints each as it comes, so that a later hang hides nothing."""

    def __init__(self, diagnostic: str) -> None:
        self._diagnostic = diagnostic
        self._findings: list[Finding] = []
        self._advice = ""

    @property
    def all_ok(self) -> bool:
        """Whether nothing is red so far."""
        return all(finding.ok for finding in self._findings)

    def add(self, finding: Finding) -> None:
        """Take a finding and print it; advice that repeats the one before is not printed again."""
        self._findings.append(finding)
        click.echo(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check}: {finding.text}")
        if finding.warning:
            click.echo(f"      warning: {finding.warning}")
        if not finding.ok and finding.do != self._advice:
            click.echo(f"  → {finding.do}")
            self._advice = finding.do

    @contextmanager
    def reported(self, check: str, do: str, *, as_json: bool) -> Iterator[None]:
        """Any exception in the block becomes a red finding, and the last."""
        try:
            yield
        except UserError as error:
            self.add(Finding(check=check, ok=False, text=str(error.args[0]), do=error.do))
            self.finish(as_json=as_json)
        except Exception as error:  # noqa: BLE001 - whatever breaks a check is what it is to report
            self.add(Finding(check=check, ok=False, text=last_line(error), do=do))
            self.finish(as_json=as_json)

    def finish(self, *, as_json: bool) -> NoReturn:
        """End the process: 0, or 4 when a check is red; with `as_json` one object is printed."""
        if as_json:
            rows = [asdict(finding) for finding in self._findings]
            for row in rows:
                row["do"] = "" if row["ok"] else row["do"]
                row["figures"] = {key: _finite(value) for key, value in row["figures"].items()}
            summary = {"diagnostic": self._diagnostic, "ok": self.all_ok, "findings": rows}
            click.echo(json.dumps(summary, allow_nan=False))
        sys.exit(int(ExitCode.DONE if self.all_ok else ExitCode.PREFLIGHT))


def _finite(value: Figure) -> Figure | list[float | None]:
    """`value` as JSON can hold it: what is no number (NaN, infinity) is null."""
    if isinstance(value, list):
        return [None if isinstance(x, float) and not math.isfinite(x) else x for x in value]  # type: ignore[return-value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def last_line(error: BaseException) -> str:
    """An exception as a traceback's last line has it, its message brought into one line."""
    message = " ".join(str(error).split())[:_MAX_MESSAGE_CHARACTERS]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def install_command() -> str:
    """What brings this Python to the pinned packages."""
    requirements = shlex.quote(str(ROOT / "requirements.txt"))
    return f"{shlex.quote(sys.executable)} -m pip install -r {requirements}"


def check_device_command() -> str:
    """What tells whether the device is at fault rather than the code."""
    root, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
    return f"cd {root} && {python} -m diagnostics.basic   # is it the device?"


def end_after(timeout_s: float) -> None:
    """Print every thread's stack and exit with 1 when this process is still running by then.

    A thread of C code does it, so that a driver that never answers cannot stop it.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True)
