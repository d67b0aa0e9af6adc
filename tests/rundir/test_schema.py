"""The table of events and the exit codes: complete, unambiguous, and in agreement with the code."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from rundir.config import SECTIONS, EvaluationConfig
from rundir.errors import ExitCode
from rundir.paths import PACKAGES
from rundir.schema import EVENTS, PHASES, RANK_PHASES, spec_of

ROOT = Path(__file__).resolve().parents[2]
ENVELOPE = {"v", "t", "mono", "node", "attempt", "rank", "pid", "kind", "name", "duration_s"}


def written_events() -> Iterator[tuple[str, str, str]]:
    """Yield (place, kind, name) of every `emit("kind", "name", …)` and `span("name", …)`."""
    for folder in PACKAGES:
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if ".emit(" not in source and ".span(" not in source:
                continue
            for node in ast.walk(ast.parse(source)):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                place = f"{folder}/{path.name}:{node.lineno}"
                if node.func.attr == "emit" and len(texts) == 2:
                    yield place, str(texts[0]), str(texts[1])
                elif node.func.attr == "span" and texts:
                    yield place, "start", str(texts[0])


def test_each_event_is_documented_and_stands_in_the_table_once() -> None:
    counts = Counter((spec.kind, spec.name) for spec in EVENTS)
    assert max(counts.values()) == 1
    for spec in EVENTS:
        assert spec.kind in ("span", "mark", "metric", "log", "error"), spec
        assert spec.meaning, spec
        assert spec.writer, spec
        assert all(spec.fields.values()), spec
        assert spec.optional <= set(spec.fields), spec
        assert not ENVELOPE & set(spec.fields), spec


def test_a_span_is_found_by_its_start_and_its_end() -> None:
    assert spec_of("start", "import") is spec_of("end", "import")
    assert spec_of("start", "import").kind == "span"
    for kind, name in (("mark", "import"), ("start", "line"), ("log", "lines"), ("span", "ste")):
        with pytest.raises(KeyError):
            spec_of(kind, name)


def test_every_event_that_the_code_writes_is_in_the_table() -> None:
    written = list(written_events())
    assert len(written) > 10  # otherwise this test looks in the wrong place
    for place, kind, name in written:
        try:
            spec_of(kind, name)
        except KeyError:
            pytest.fail(f"{place} writes {kind} {name}, which is not in the table")


def test_phases_and_meanings_are_distinct_and_the_exit_codes_the_promised_ones() -> None:
    meanings = tuple(code.meaning for code in ExitCode)
    for texts in (PHASES, RANK_PHASES, meanings):
        assert all(texts)
        assert len(set(texts)) == len(texts)
    assert [int(code) for code in ExitCode] == [0, 2, 3, 4, 5, 10, 11, 12, 20, 21]


def test_every_setting_says_what_it_means() -> None:
    keys = set()
    for section, cls in (SECTIONS | {"evaluation": EvaluationConfig}).items():
        for item in fields(cls):
            assert item.metadata["help"], f"{section}.{item.name}"
            keys.add(f"{section}.{item.name}")
    described = json.loads((ROOT / "rundir/settings.json").read_text(encoding="utf-8"))
    assert described.keys() == keys
