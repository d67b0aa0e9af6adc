"""The literals that a line must contain for a regular expression to match: see prefilter.py."""

from __future__ import annotations

import re
from typing import Any

from machine.processes.python_compat import regex_opcodes, regex_parser

LETTERS = b"abcdefghijklmnopqrstuvwxyz"
LEAST_LETTERS = 3

Choice = frozenset[bytes]  # texts in lower case; one of them must be there


def texts_of(pattern: str) -> tuple[Choice, ...]:
    """Return the literals that every match of `pattern` contains, in any case: one of each choice.

    The most selective choice comes first. Raises ValueError for an invalid pattern, and if no
    choice has `LEAST_LETTERS` letters in each of its texts.
    """
    try:
        choices = _choices(regex_parser.parse(pattern))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from error
    texts = [choice for choice in choices if _num_letters(choice) >= LEAST_LETTERS]
    if not texts:
        raise ValueError(
            f"{pattern!r} has no fixed text with {LEAST_LETTERS} letters that each of its matches "
            "holds, so every line of a log would have to be tried"
        )
    return tuple(sorted(set(texts), key=_weight, reverse=True))


def _num_letters(choice: Choice) -> int:
    return min(sum(character in LETTERS for character in text) for text in choice)


def _weight(choice: Choice) -> tuple[int, int, list[bytes]]:
    return _num_letters(choice), -len(choice), sorted(choice)


def _choices(items: Any) -> list[Choice]:
    """Return the choices of a sequence of items, all of which must be there."""
    choices: list[Choice] = []
    run = ""
    for op, value in [*items, (regex_opcodes.ANY, None)]:  # the last one flushes `run`
        character = chr(value) if op is regex_opcodes.LITERAL else ""
        if character.isascii() and character:
            run += character.lower()
            continue
        if op is regex_opcodes.AT:  # an anchor has no width: the text on both sides is contiguous
            continue
        if run:
            choices.append(frozenset({run.encode()}))
        run = ""
        choices += _inside(op, value)
    return choices


def _inside(op: Any, value: Any) -> list[Choice]:
    """Return the choices required by a group, repetition or branch; none if it is optional."""
    if op is regex_opcodes.SUBPATTERN:
        return _choices(value[-1])
    if op in (regex_opcodes.MAX_REPEAT, regex_opcodes.MIN_REPEAT) and value[0] >= 1:
        return _choices(value[2])
    if op is regex_opcodes.BRANCH:
        parts = [max(_choices(part), key=_weight, default=None) for part in value[1]]
        if all(parts):
            return [frozenset[bytes]().union(*(part for part in parts if part))]
    return []
