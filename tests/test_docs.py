"""The documentation says what the code does, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import launch.write_docs
import monitor.api.endpoint_table
import rundir.docs
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize(
    ("maker", "file"),
    [
        (module, file)
        for module in (rundir.docs, launch.write_docs, monitor.api.endpoint_table)
        for file in module.TABLES
    ],
)
def test_tables_made_from_code_are_up_to_date(maker: ModuleType, file: str) -> None:
    renewed = rundir.docs.renewed(ROOT / file, maker.TABLES)
    assert (ROOT / file).read_text() == renewed, f"run: python -P -m {maker.__name__}"


def test_help_that_is_shown_without_an_environment_is_that_of_the_commands() -> None:
    shown = {file: file.read_text() for file in launch.write_docs.HELP.iterdir()}
    assert shown == dict(launch.write_docs.help_texts()), "run: python -P -m launch.write_docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_names_the_test_command_that_ci_runs() -> None:
    assert "./test.sh" in (ROOT / "README.md").read_text()
    assert re.search(r"^step \./test\.sh$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
