"""The fixed text that a line must hold for a regular expression to match it.

A log of 100 MB is searched for a few hundred expressions: one by one, line by line, that takes
minutes. `bytes.find` of their fixed text takes seconds, and the expressions are then tried only on
the lines where it was found.
"""

from __future__ import annotations

import re
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

LEAST_CHARACTERS = 3


def literals_of(pattern: str) -> frozenset[bytes]:
    """In lower case: every line that `pattern` matches holds one of these, whatever its case.

    Raises ValueError when there are none of `LEAST_CHARACTERS` or more, re.error for a pattern
    that is none.
    """
    found = _best(parser.parse(pattern))
    if not found or min(map(len, found)) < LEAST_CHARACTERS:
        raise ValueError(
            f"{pattern!r} has no fixed text of {LEAST_CHARACTERS} characters that each of its "
            "matches holds, so every line of a log would have to be tried"
        )
    return found


def _best(items: Any) -> frozenset[bytes]:
    """The choice of texts, one of which must be there, whose shortest is longest."""
    choices: list[frozenset[bytes]] = []
    run = ""
    for op, value in [*items, (sre.ANY, None)]:  # the last one ends what stands before it
        character = chr(value) if op is sre.LITERAL else ""
        if character.isascii() and character:
            run += character.lower()
            continue
        if op is sre.AT:  # an anchor takes no room: what stands on its sides is one text
            continue
        if run:
            choices.append(frozenset({run.encode()}))
        run = ""
        choices += _inside(op, value)
    return max(choices, key=lambda texts: (min(map(len, texts)), -len(texts)), default=frozenset())


def _inside(op: Any, value: Any) -> list[frozenset[bytes]]:
    """What must be there of a group, a repetition or a choice; nothing where it may be missing."""
    if op is sre.SUBPATTERN:
        found = _best(value[-1])
    elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[0] >= 1:
        found = _best(value[2])
    elif op is sre.BRANCH:
        parts = [_best(part) for part in value[1]]
        found = frozenset().union(*parts) if all(parts) else frozenset()
    else:
        found = frozenset()
    return [found] if found else []


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """`pattern`, compiled; raises ValueError, saying what is wrong with it."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
