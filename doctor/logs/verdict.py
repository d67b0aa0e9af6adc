"""The doctor's verdict: one cause, its evidence, and what to type next."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

_WIDTH = 100  # columns
_LIKELY = 0.6  # the lowest confidence that is called likely


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log. `line` counts from 1; `text` is its content, shortened."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The diagnosis. `cause` is "unknown" when no known problem was found.

    `confidence`, 0 to 1, orders verdicts; it is the rule author's guess, not a measured frequency.
    `is_proven` is only for what the kernel or the launcher itself reported.
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
        """The degree of trust in the verdict, in a word: certain, likely or possible."""
        if self.is_proven:
            return "certain"
        return "likely" if self.confidence >= _LIKELY else "possible"

    @property
    def is_known(self) -> bool:
        """True if a problem was found."""
        return self.cause != "unknown"

    def lines(self) -> list[str]:
        """Format the verdict for people: cause, rank, reason, evidence, and what to do."""
        who = "" if self.rank is None else f"rank {self.rank}, "
        why = textwrap.wrap(self.why, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        lines = [self.title]
        if self.is_known:
            lines.append(f"  {who}cause {self.cause} ({self.certainty})")
        lines += ["", *why]
        if self.evidence:
            lines += [
                "",
                *(
                    f"  {evidence.file}:{evidence.line}: {evidence.text}"
                    for evidence in self.evidence
                ),
            ]
        return [*lines, "", f"→ {self.fix}"]

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `airlock doctor --json`."""
        return {
            "cause": self.cause,
            "title": self.title,
            "why": self.why,
            "rank": self.rank,
            "evidence": [
                {"file": evidence.file, "line": evidence.line, "text": evidence.text}
                for evidence in self.evidence
            ],
            "fix": self.fix,
            "confidence": self.confidence,
        }
