"""The documentation says what the code does, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tables.help_texts import HELP, help_texts
from docs.tables.renewed import TABLES, renewed
from tests.conftest import ROOT

_RENEW = "run: PYTHONPATH=. python -P -m docs.tables"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("file", TABLES)
def test_tables_made_from_code_are_up_to_date(file: str) -> None:
    assert (ROOT / file).read_text() == renewed(ROOT / file), _RENEW


def test_help_that_is_shown_without_an_environment_is_that_of_the_commands() -> None:
    shown = {file: file.read_text() for file in HELP.iterdir()}
    assert shown == dict(help_texts()), _RENEW


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_names_the_test_command_that_ci_runs() -> None:
    assert "./test.sh" in (ROOT / "README.md").read_text()
    assert re.search(r"^step \./test\.sh$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
