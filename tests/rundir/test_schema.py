"""The table of events and the exit codes: complete, unambiguous, and in agreement with the code."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from rundir.config import SECTIONS
from rundir.exit_codes import ExitCode
from rundir.paths import PACKAGES
from rundir.schema import EVENTS, PHASES, RANK_PHASES, EventSpec, spec_of

ROOT = Path(__file__).resolve().parents[2]
ENVELOPE = {"v", "t", "mono", "node", "attempt", "rank", "pid", "kind", "name", "duration_s"}


def written_events() -> Iterator[tuple[str, str, str]]:
    """Yield (place, kind, name) of every `emit("kind", "name", …)` and `span("name", …)`."""
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                place = f"{folder}/{path.name}:{node.lineno}"
                if node.func.attr == "emit" and len(texts) == 2:
                    yield place, str(texts[0]), str(texts[1])
                elif node.func.attr == "span" and texts:
                    yield place, "start", str(texts[0])


def test_no_name_stands_twice_in_the_table() -> None:
    counts = Counter((spec.kind, spec.name) for spec in EVENTS)
    assert max(counts.values()) == 1


@pytest.mark.parametrize("spec", EVENTS, ids=[f"{spec.kind}-{spec.name}" for spec in EVENTS])
def test_each_event_is_documented(spec: EventSpec) -> None:
    assert spec.meaning
    assert spec.writer
    assert all(spec.fields.values())
    assert spec.optional <= set(spec.fields)
    assert not ENVELOPE & set(spec.fields)


def test_a_span_is_found_by_its_start_and_its_end() -> None:
    assert spec_of("start", "import") is spec_of("end", "import")
    assert spec_of("start", "import").kind == "span"
    for kind, name in (("mark", "import"), ("start", "line"), ("log", "lines")):
        with pytest.raises(KeyError):
            spec_of(kind, name)


def test_every_event_that_the_code_writes_is_in_the_table() -> None:
    found = list(written_events())
    assert len(found) > 10  # otherwise this test looks in the wrong place
    for place, kind, name in found:
        try:
            spec_of(kind, name)
        except KeyError:
            pytest.fail(f"{place} writes {kind} {name}, which is not in the table")


def test_phases_are_distinct() -> None:
    assert len(set(PHASES)) == len(PHASES)
    assert len(set(RANK_PHASES)) == len(RANK_PHASES)


def test_every_exit_code_has_a_meaning_of_its_own() -> None:
    meanings = [code.meaning for code in ExitCode]
    assert all(meanings)
    assert len(set(meanings)) == len(meanings)


def test_the_exit_codes_are_the_promised_ones() -> None:
    assert [int(code) for code in ExitCode] == [0, 2, 3, 4, 5, 10, 11, 12, 20, 21]


def test_every_setting_says_what_it_means() -> None:
    for section, cls in SECTIONS.items():
        for item in fields(cls):
            assert item.metadata["help"], f"{section}.{item.name}"
