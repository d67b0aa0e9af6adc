"""The expected diagnosis of a run that was broken on purpose, and assertions on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).with_name("sabotage.py"))
LONG = pytest.mark.long


@dataclass(frozen=True, slots=True)
class Named:
    """The expected diagnosis of a failure, in the doctor's verdict and the run's final report."""

    cause: str
    report: str
    fix: str  # a part of the command that the user is told to type
    own: str = ""  # the line of the script itself that the evidence names
    rank: int | None = 1
    code: int = 10


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run, and the doctor's verdict on it; paths are relative to `folder`."""

    code: int
    out: str
    told: dict[str, Any]
    folder: Path

    def assert_named(self, wanted: Named) -> None:
        """Fail unless the report and the doctor give the expected diagnosis with its evidence."""
        told = self.told
        assert (told["cause"], told["rank"], self.code) == (wanted.cause, wanted.rank, wanted.code)
        first, *more = told["evidence"]
        lines = (self.folder / first["file"]).read_text(encoding="utf-8").splitlines()
        assert first["text"].rstrip("…") in lines[first["line"] - 1]
        assert any(wanted.own in one["text"] for one in (first, *more)), told["evidence"]
        assert wanted.fix in told["fix"]
        report = re.split(r"(?m)^airlock: the run (?:failed|hung): ", self.out)[-1]
        assert wanted.report in report
        assert wanted.fix in report

    def assert_nothing_named(self) -> None:
        """Fail if the doctor or the report name a failure."""
        told = self.told
        assert (told["cause"], told["rank"], told["evidence"]) == ("unknown", None, [])
        assert "airlock: the run" not in self.out


ToItsEnd = Callable[..., End]
