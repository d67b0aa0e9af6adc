"""The doctor's verdict: one cause, its evidence, and what to type next."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from rundir.paths import shown

_WIDTH = 100  # columns
_LIKELY = 0.6  # the lowest confidence that is called likely
_TEXTS = ("cause", "title", "why", "fix")


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
            "evidence": [asdict(evidence) for evidence in self.evidence],
            "fix": self.fix,
            "confidence": self.confidence,
        }


@cache
def _written() -> dict[str, dict[str, Any]]:
    file = Path(__file__).parent.parent / "verdicts.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def written_verdict(
    key: str, words: Mapping[str, object], *, confidence: float | None = None, **fields: Any
) -> Verdict:
    """Return the verdict `key` of verdicts.toml, with `words` in its texts, and further `fields`.

    It has the confidence that is written there, unless another is given.
    """
    section, _, name = key.partition(".")
    row = _written()[section][name]
    known = {**_written()["text"], **words}
    texts = {text: row.get(text, "").format_map(known) for text in _TEXTS}
    given = {} if confidence is None else {"confidence": confidence}
    return Verdict(**row | texts | given | fields)


def first_line_with(path: Path, text: str) -> tuple[Evidence, ...]:
    """Return the first line of a file that has `text` in it, if there is one."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    matching = ((number, line) for number, line in enumerate(lines, 1) if text in line)
    return tuple(Evidence(shown(path), at, line.strip()) for at, line in islice(matching, 1))
