"""Rules are data: an invalid one is reported with its file, its cause, and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.logs.literals import texts_of
from doctor.logs.rules import RuleError, contradictions, load_rules
from tests.doctor.doctor_rules import rules

GOOD = """
[[rule]]
cause = "first"
title = "The first"
role = "root"
match = ['first of all']
why = "So."
fix = "do it"

[[rule]]
cause = "second"
title = "The second"
role = "root"
match = ['second of all']
why = "So."
fix = "do it"
"""


def broken(old: str, new: str) -> str:
    """Return `GOOD` with its last `old` replaced."""
    head, found, tail = GOOD.rpartition(old)
    assert found
    return head + new + tail


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (broken('why = "So."\n', ""), "why is missing"),
        (broken("['second of all']", "'second of all'"), "match is 'second of all', not a list"),
        (broken("['second of all']", "[3]"), "match contains an item that is not a string"),
        (broken("second of", "(second of"), "is not a valid regular expression"),
        (broken("second of all", ".*a|b"), "no fixed text with 3 letters"),
        (broken('"root"', '"cause"'), "role 'cause' is none of root, symptom, cascade, benign"),
        (broken("fix =", "fixes ="), "unknown field 'fixes'"),
        (broken('"The second"', "2"), "title is 2, not a text"),
        (broken('fix = "do it"', 'fix = "do it"\nconfidence = 95'), "confidence 95 is not above 0"),
        (broken('"root"', '"benign"\nneeds = ["abc"]'), "a benign rule masks its lines always"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RuleError, match=r"^test\.toml: rule 2 .second.: ") as error:
        rules(tmp_path, text)
    assert said in str(error.value)


def test_a_cause_that_is_no_name_is_said(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cause 'Second Cause' is not in lower case with hyphens"):
        rules(tmp_path, broken('"second"', '"Second Cause"'))


@pytest.mark.parametrize("text", ["[[rule]\n", "[rules]\n"])
def test_a_file_that_holds_no_rules_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(RuleError, match=r"^test\.toml: "):
        rules(tmp_path, text)


def test_what_rules_say_of_each_other_is_looked_at(tmp_path: Path) -> None:
    text = broken('title = "The second"', 'title = "The second"\nbeats = ["first", "thrid"]')
    assert contradictions(rules(tmp_path, text)) == ["second beats 'thrid', which is no cause"]
    both = text.replace('title = "The first"', 'title = "The first"\nbeats = ["second"]')
    assert "first beats 'second', which beats it" in contradictions(rules(tmp_path, both))


def test_the_rules_that_are_there_can_be_used_together() -> None:
    assert contradictions(load_rules()) == []
    assert {rule.role for rule in load_rules()} >= {"root", "symptom"}


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("Killed", {"killed"}),
        (r"^exitcode\s*: -9$", {"exitcode"}),
        (r"(?i)Out Of Memory", {"out of memory"}),
        (r"EADDRINUSE|errno: 98", {"eaddrinuse", "errno: 98"}),
        (r"loss( =|:) (nan|inf)", {"loss"}),
        (r"CUDA (error|failure) \d+: .*invalid device ordinal", {"invalid device ordinal"}),
        (r"(Grüße|naïve) an alle", {" an alle"}),
        (r"(maybe)?surely", {"surely"}),
    ],
)
def test_the_fixed_text_of_a_pattern_is_found(pattern: str, texts: set[str]) -> None:
    assert {one.decode() for one in texts_of(pattern)[0]} == texts
