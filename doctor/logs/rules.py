"""The rules, as data: doctor/rules/AREA.toml. docs/doctor.md says how to add one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from doctor.logs.literals import Choice, texts_of
from doctor.logs.segments import Segment

FOLDER = Path(__file__).resolve().parent.parent / "rules"
ROLES = ("root", "symptom", "cascade", "benign")  # the first three by decreasing weight

_TEXTS = ("cause", "title", "role", "why", "fix", "fix_in_profile", "example")
_LISTS = ("match", "needs", "unless", "beats", "source")
_OPTIONAL = {"fix_in_profile", "needs", "unless", "beats", "source", "example"}
_FLAGS_OF_ROLE = {
    "covers_traceback": ("benign",),
    "tells_lines": ("root",),
    "at_end": ("root", "symptom", "cascade"),
}
_MAY_BE_EMPTY_IF_BENIGN = {"why", "fix"}
_CAUSE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


class RuleError(ValueError):
    """An invalid rule: the message names its file, the rule, and what is wrong."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """One regular expression, and the lower-case literals that a line needs to match it."""

    text: str
    texts: tuple[Choice, ...]

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Create the pattern written as `text`. Raises ValueError if it cannot be used."""
        return cls(text, texts_of(text))

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The compiled expression; compiled on first use, as most are never needed."""
        return re.compile(self.text)

    @cached_property
    def _is_anchored(self) -> bool:
        """True if the pattern is anchored to the beginning of a line, without its prefix."""
        return "^" in self.text.replace("[^", "")

    def search(self, segment: Segment) -> re.Match[str] | None:
        """Return the match in a line, or None."""
        match = self.regex.search(segment.raw)
        if match is None and self._is_anchored:
            match = self.regex.search(segment.stripped.text)
        return match


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """One thing that a log can reveal; see docs/doctor.md for the fields."""

    cause: str
    title: str
    role: str
    match: tuple[Pattern, ...]
    why: str = ""
    fix: str = ""
    fix_in_profile: str = ""
    confidence: float = 0.9
    needs: tuple[Pattern, ...] = ()
    unless: tuple[Pattern, ...] = ()
    beats: frozenset[str] = frozenset()
    source: tuple[str, ...] = ()
    example: str = ""
    covers_traceback: bool = False
    tells_lines: bool = False
    at_end: bool = False


EXCEPTION = "python-exception"
# The rule of an exception that no other knows.
RAISED = Rule(
    cause=EXCEPTION,
    title="",
    role="symptom",
    match=(),
    confidence=0.5,
    why="The program raised this exception, and no rule knows it: what it says is what there is.",
)


def filled(text: str, groups: dict[str, str | None]) -> str:
    """Return `text` with `{name}` replaced by what the group of that name matched.

    A group that took no part in the match is replaced by its name in capitals; any other braces are
    left alone.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return match[0] if name not in groups else groups[name] or name.upper()

    return _PLACEHOLDER.sub(value, text)


@cache
def load_rules(folder: Path = FOLDER) -> tuple[Rule, ...]:
    """Load every rule of every *.toml in `folder`.

    Raises RuleError for the first invalid rule, OSError for a file that cannot be read.
    """
    rules: list[Rule] = []
    for path in sorted(folder.glob("*.toml")):
        rules += read_rules(path)
    return tuple(rules)


def read_rules(path: Path) -> list[Rule]:
    """Return the rules of one file. Raises RuleError and OSError as `load_rules` does."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RuleError(f"{path.name}: {error}") from error
    if unknown := table.keys() - {"rule"}:
        raise RuleError(f"{path.name}: {', '.join(sorted(unknown))}: only [[rule]] is known")
    rules = []
    for number, row in enumerate(table.get("rule", []), 1):
        try:
            rules.append(_rule(row))
        except ValueError as error:
            name = f"rule {number} ({row.get('cause', 'without a cause')})"
            raise RuleError(f"{path.name}: {name}: {error}") from error
    return rules


def _rule(row: dict[str, Any]) -> Rule:
    _check_fields(row)
    _check_values(row)
    patterns = {
        key: tuple(Pattern.of(text) for text in row.get(key, ()))
        for key in ("match", "needs", "unless")
    }
    values = {
        "why": " ".join(row.get("why", "").split()),
        "fix": row.get("fix", "").strip(),
        "fix_in_profile": row.get("fix_in_profile", "").strip(),
        "confidence": float(row.get("confidence", 0.9)),
        "beats": frozenset(row.get("beats", ())),
        "source": tuple(row.get("source", ())),
    }
    return Rule(**row | values | patterns)


def _check_fields(row: dict[str, Any]) -> None:
    known = {*_TEXTS, *_LISTS, *_FLAGS_OF_ROLE, "confidence"}
    if unknown := row.keys() - known:
        raise ValueError(
            f"unknown field {sorted(unknown)[0]!r}; there are {', '.join(sorted(known))}"
        )
    optional = _OPTIONAL | (_MAY_BE_EMPTY_IF_BENIGN if row.get("role") == "benign" else set())
    for key in (*_TEXTS, *_LISTS):
        value, kind = row.get(key), str if key in _TEXTS else list
        if not value and key not in optional:
            raise ValueError(f"{key} is missing")
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{key} is {value!r}, not a {'text' if kind is str else 'list'}")
        if kind is list and not all(isinstance(item, str) for item in value or ()):
            raise ValueError(f"{key} contains an item that is not a string")


def _check_values(row: dict[str, Any]) -> None:
    if not _CAUSE.fullmatch(row["cause"]):
        raise ValueError(f"cause {row['cause']!r} is not in lower case with hyphens")
    if row["role"] not in ROLES:
        raise ValueError(f"role {row['role']!r} is none of {', '.join(ROLES)}")
    if row["role"] == "benign" and (set(row) & {"needs", "unless", "beats"}):
        raise ValueError("a benign rule masks its lines always: no needs, unless or beats")
    for flag, roles in _FLAGS_OF_ROLE.items():
        if row.get(flag, False) not in (False, row["role"] in roles):
            raise ValueError(f"{flag} is true or false, and of a {' or '.join(roles)} rule")
    confidence = row.get("confidence", 0.9)
    if not (isinstance(confidence, int | float) and 0 < confidence <= 1):
        raise ValueError(f"confidence {confidence!r} is not above 0 and at most 1")


def contradictions(rules: Iterable[Rule]) -> list[str]:
    """Return the contradictions in what rules beat: unknown causes, and mutual ones.

    Such rules are still usable, so the report on a run does not depend on this; tests do.
    """
    beaten: dict[str, set[str]] = {}
    for rule in rules:
        beaten.setdefault(rule.cause, set()).update(rule.beats)
    known = beaten.keys() | {EXCEPTION}
    return [
        f"{cause} beats {other!r}, " + ("which beats it" if other in known else "which is no cause")
        for cause, others in sorted(beaten.items())
        for other in sorted(others)
        if other not in known or cause in (other, *beaten.get(other, ()))
    ]
