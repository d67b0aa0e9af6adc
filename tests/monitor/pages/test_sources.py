"""What the files of the pages must not have, whatever a browser makes of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from monitor.pages.page_files import HERE, STATIC, chart_file
from monitor.pages.page_routes import PAGES
from monitor.report.write import bundled
from tests.monitor.answers.made import client

SCRIPTS = sorted(STATIC.glob("*.js"))
TEMPLATES = sorted((HERE / "templates").rglob("*.html"))
SERVED = [path for path in TEMPLATES if path.name != "report.html"]


def test_no_script_makes_markup_of_text_and_only_the_charts_know_uplot() -> None:
    risky = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    for script in SCRIPTS:
        assert re.findall(risky, script.read_text()) == [], script
        assert script.name == "charts.js" or "uPlot" not in script.read_text(), script


def test_urls_are_relative_and_lead_nowhere_else() -> None:
    for path in (*SCRIPTS, *SERVED, *STATIC.glob("*.css")):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://|[\"'(]//", text) == [], path
        assert re.findall(r"(?:href|src|get\(|fetch\(|post\()=?[\"'(`]/", text) == [], path


def test_templates_hold_no_script_and_no_style() -> None:
    for template in SERVED:
        text = template.read_text()
        assert re.findall(r"<style|<script(?![^>]* src=)|\sstyle=|\son[a-z]+=", text) == [], (
            template
        )


def test_the_scripts_of_a_report_become_one() -> None:
    script = bundled("report", STATIC)
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert script.count("const module_charts =") == 1


def test_a_form_of_import_that_cannot_be_put_together_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text('import * as all from "./b.js";\n')
    with pytest.raises(ValueError, match=r"a\.js: a form of import .* import \* as all"):
        bundled("a", tmp_path)


@pytest.fixture(scope="module")
def asks(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """Return what asks a server over no runs."""
    return client(tmp_path_factory.mktemp("none"))


@pytest.mark.parametrize(("path", "name"), PAGES.items())
def test_each_page_asks_for_all_its_modules_under_a_policy_that_lets_nothing_inline_run(
    path: str, name: str, asks: TestClient
) -> None:
    answer = asks.get(path)
    assert answer.status_code == 200
    assert "<main" in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    asked = set(re.findall(r'rel="modulepreload" href="static/(\w+)\.js"', answer.text))
    assert {name} | {other for module in asked for other in _imports(module)} == asked


def _imports(module: str) -> list[str]:
    return re.findall(r'from "\./(\w+)\.js"', (STATIC / f"{module}.js").read_text())


def test_charts_are_those_of_the_package_where_it_lies(asks: TestClient) -> None:
    answer = asks.get("/static/uplot/uPlot.js")
    assert answer.content == chart_file("uPlot.js").read_bytes()
    assert "site-packages" in str(chart_file("uPlot.js"))
    assert answer.headers["Content-Type"].startswith("text/javascript")


def test_a_file_that_a_browser_has_is_not_sent_again(asks: TestClient) -> None:
    first = asks.get("/static/run.js")
    again = asks.get("/static/run.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    older = asks.get("/static/run.js", headers={"If-None-Match": '"0-0"'})
    assert (older.status_code, older.content) == (200, first.content)


@pytest.mark.parametrize("name", ["nothing.js", "..%2frun.html", "uplot/nothing.js", "app.py"])
def test_no_other_file_is_served(name: str, asks: TestClient) -> None:
    answer = asks.get(f"/static/{name}")
    assert answer.status_code == 404
    assert "error" in answer.json()
