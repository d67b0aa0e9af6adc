"""The rules against excerpts in the style of public reports, and against logs of healthy runs.

Each file of corpus/ is listed in corpus/index.toml with its cause, the line that must be the first
evidence, the rank if the log reveals it, and the public report that it was modelled on. Those with
`held_out` were written after the rules, to see how well they generalise.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from doctor.logs.diagnosis import diagnose
from doctor.logs.rules import Rule, load_rules

HERE = Path(__file__).parent
CORPUS, HEALTHY = HERE / "corpus", HERE / "healthy"
INDEX: dict[str, dict[str, Any]] = tomllib.loads((CORPUS / "index.toml").read_text("utf-8"))
HEALTHY_INDEX: dict[str, dict[str, Any]] = tomllib.loads(
    (HEALTHY / "index.toml").read_text("utf-8")
)
SERIOUS = [rule for rule in load_rules() if rule.role != "benign"]


@pytest.mark.parametrize("name", INDEX)
def test_the_cause_is_named_by_the_line_that_tells_it(name: str) -> None:
    wanted = INDEX[name]
    verdict = diagnose([str(CORPUS / name)])
    assert verdict.cause == wanted["cause"], verdict.evidence
    assert verdict.evidence[0].line == wanted["root_line"], verdict.evidence
    assert "rank" not in wanted or verdict.rank == wanted["rank"]


@pytest.mark.parametrize("name", HEALTHY_INDEX)
def test_nothing_is_named_in_the_log_of_a_healthy_run(name: str) -> None:
    verdict = diagnose([str(HEALTHY / name)])
    assert verdict.cause == "unknown", verdict.evidence


@pytest.mark.runs
@pytest.mark.parametrize("name", INDEX)
def test_a_windows_log_with_colours_tells_the_same(name: str, tmp_path: Path) -> None:
    lines = (CORPUS / name).read_text("utf-8").split("\n")
    log = tmp_path / name
    log.write_bytes("\r\n".join(f"\x1b[32m{line}\x1b[0m" for line in lines).encode())
    assert diagnose([str(log)]).cause == INDEX[name]["cause"]


@pytest.mark.parametrize("rule", SERIOUS, ids=lambda rule: rule.cause)
def test_a_rule_is_the_verdict_on_its_own_example(rule: Rule, tmp_path: Path) -> None:
    log = tmp_path / "example.log"
    log.write_text(rule.example + "\n", encoding="utf-8")
    lines = rule.example.split("\n")
    assert any(pattern.regex.search(line) for pattern in rule.match for line in lines)
    assert diagnose([str(log)]).cause == rule.cause


@pytest.mark.parametrize("folder", [CORPUS, HEALTHY], ids=["corpus", "healthy"])
def test_every_log_is_listed_with_the_report_it_was_modelled_on(folder: Path) -> None:
    index = INDEX if folder == CORPUS else HEALTHY_INDEX
    assert index.keys() == {path.name for path in folder.glob("*.log")}
    assert all(entry["source"].startswith("https://") for entry in index.values())
