"""What the doctor says: one cause, where it can be read, and what to type next."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

_WIDTH = 100  # columns
_LIKELY = 0.6  # the least confidence that is called likely


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log. `line` counts from 1; `text` is what stands there, shortened."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What has happened. `cause` is "unknown" when nothing is known to be wrong.

    `confidence`, 0 to 1, orders verdicts: its author's guess, not a measured frequency. Only what
    the kernel or the launcher itself has said `is_proven`.
    """

    cause: str
    title: str
    why: str
    fix: str
    confidence: float
    rank: int | None = None
    evidence: tuple[Evidence, ...] = ()
    role: str = "root"
    is_proven: bool = False

    @property
    def certainty(self) -> str:
        """How far the verdict can be trusted, in a word: certain, likely or possible."""
        if self.is_proven:
            return "certain"
        return "likely" if self.confidence >= _LIKELY else "possible"

    @property
    def is_known(self) -> bool:
        """Whether something wrong was found."""
        return self.cause != "unknown"

    def lines(self) -> list[str]:
        """The verdict for people: what, who, why, where it stands, and what to do."""
        who = "" if self.rank is None else f"rank {self.rank}, "
        why = textwrap.wrap(self.why, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        found = [self.title]
        if self.is_known:
            found.append(f"  {who}cause {self.cause} ({self.certainty})")
        found += ["", *why]
        if self.evidence:
            found += ["", *(f"  {one.file}:{one.line}: {one.text}" for one in self.evidence)]
        return [*found, "", f"→ {self.fix}"]

    def as_json(self) -> dict[str, Any]:
        """The fields of `airlock doctor --json`."""
        return {
            "cause": self.cause,
            "title": self.title,
            "rank": self.rank,
            "evidence": [
                {"file": one.file, "line": one.line, "text": one.text} for one in self.evidence
            ],
            "fix": self.fix,
            "confidence": self.confidence,
        }
