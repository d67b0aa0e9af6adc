"""The fixed text that a line must hold for a regular expression to match it: see prefilter.py."""

from __future__ import annotations

import re
from typing import Any

from launch.process.python_compat import regex_opcodes, regex_parser

LETTERS = b"abcdefghijklmnopqrstuvwxyz"
LEAST_LETTERS = 3

Choice = frozenset[bytes]  # texts in lower case; one of them must be there


def texts_of(pattern: str) -> tuple[Choice, ...]:
    """What every line holds that `pattern` matches, whatever its case: one text of each choice.

    The choice that tells most comes first. Raises ValueError when none has `LEAST_LETTERS` in each
    of its texts, and for a pattern that is none.
    """
    try:
        choices = _choices(regex_parser.parse(pattern))
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    found = [one for one in choices if _num_letters(one) >= LEAST_LETTERS]
    if not found:
        raise ValueError(
            f"{pattern!r} has no fixed text with {LEAST_LETTERS} letters that each of its matches "
            "holds, so every line of a log would have to be tried"
        )
    return tuple(sorted(set(found), key=_weight, reverse=True))


def _num_letters(choice: Choice) -> int:
    return min(sum(character in LETTERS for character in text) for text in choice)


def _weight(choice: Choice) -> tuple[int, int, list[bytes]]:
    return _num_letters(choice), -len(choice), sorted(choice)


def _choices(items: Any) -> list[Choice]:
    """All texts of a sequence, each of which must be there."""
    choices: list[Choice] = []
    run = ""
    for op, value in [*items, (regex_opcodes.ANY, None)]:  # the last one ends what stands before it
        character = chr(value) if op is regex_opcodes.LITERAL else ""
        if character.isascii() and character:
            run += character.lower()
            continue
        if op is regex_opcodes.AT:  # an anchor takes no room: what stands on its sides is one text
            continue
        if run:
            choices.append(frozenset({run.encode()}))
        run = ""
        choices += _inside(op, value)
    return choices


def _inside(op: Any, value: Any) -> list[Choice]:
    """What must be there of a group, a repetition or a choice; nothing where it may be missing."""
    if op is regex_opcodes.SUBPATTERN:
        return _choices(value[-1])
    if op in (regex_opcodes.MAX_REPEAT, regex_opcodes.MIN_REPEAT) and value[0] >= 1:
        return _choices(value[2])
    if op is regex_opcodes.BRANCH:
        parts = [max(_choices(part), key=_weight, default=None) for part in value[1]]
        if all(parts):
            return [frozenset[bytes]().union(*(part for part in parts if part))]
    return []
