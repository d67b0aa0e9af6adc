"""Words: variables are named for what they hold, and a text beside an option needs no code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import click
import pytest

from docs.tables.help_texts import commands
from rundir.config import SECTIONS
from tests.conftest import ROOT
from tests.test_boundaries import OURS

EMPTY = ("one", "found", "told", "said", "look", "way")
MOST = 30  # of each, in the product


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield the name of each variable and parameter, once for each place that binds it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_variables_and_parameters_are_named_for_what_they_hold() -> None:
    counts = Counter(
        name
        for package in OURS
        for path in (ROOT / package).rglob("*.py")
        for name in bound_names(ast.parse(path.read_text(encoding="utf-8")))
    )
    assert {name: counts[name] for name in EMPTY if counts[name] > MOST} == {}


def test_bindings_of_every_kind_are_counted() -> None:
    program = "one = 1\nfor one in (): [one for one in ()]\ndef work(one, *said): one += 1"
    counts = Counter(bound_names(ast.parse(program)))
    assert (counts["one"], counts["said"]) == (5, 1)


# A text that begins so goes on from the name of the option, and says nothing without it.
UNFIT = (
    *("at", "how", "what", "which", "where", "whether", "if"),
    *("by", "of", "for", "with", "only", "also", "than"),
)


def texts() -> Iterator[tuple[str, str]]:
    """Yield each option of a command, and each setting, with its text."""
    for name, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and option.help is not None:
                yield f"{name} {option.opts[0]}", option.help
    for section, cls in SECTIONS.items():
        for item in fields(cls):
            yield f"{section}.{item.name}", item.metadata["help"]


@pytest.mark.parametrize(("name", "text"), [pytest.param(*pair, id=pair[0]) for pair in texts()])
def test_a_text_is_understood_without_the_code(name: str, text: str) -> None:
    words = re.findall(r"[\w'-]+", text)
    assert len(words) >= 3, f"{name}: {text}"
    assert words[0].lower() not in UNFIT, f"{name}: {text}"
