"""Names that say nothing of what they hold are not used for variables."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

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
