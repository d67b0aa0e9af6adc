"""Reports: one file, the same figures, nothing secret, nothing fetched."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from monitor.report.report_command import main
from monitor.report.write import licences, report_html, series
from rundir.paths import RunDir
from tests.forked import run_module
from tests.monitor.answers.made import HOSTILE
from tests.monitor.browsing import opened, server, until
from tests.monitor.pages.hostile import EVIL, NAME, assert_harmless, hostile_run

SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"  # noqa: S105 - made up
TILES = (
    "[...document.querySelectorAll('[data-tile]')]"
    ".map((one) => `${one.dataset.tile} ${one.textContent}`).join('; ')"
)
LEGENDS = "[...document.querySelectorAll('.chart')].map((one) => one.innerText).join('\\n')"


def report(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return run_module("launch", "report", *words, env=environ)


def test_a_report_is_one_file_that_is_not_replaced_unasked(
    demo: RunDir, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.html"
    made = report(environ, demo.run_id, "-o", str(file))
    assert (made.returncode, made.stderr) == (0, "")
    assert str(file) in made.stdout
    html = file.read_text()
    assert len(html.encode()) < 8_000_000
    assert "Permission is hereby granted, free of charge" in html
    assert "Leon Sorokin" in html
    assert "Apache License" in html
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", environ["AIRLOCK_RUNS_DIR"])
    asks = CliRunner()
    again = asks.invoke(main, [demo.run_id, "-o", str(file)])
    assert again.exit_code == 2
    assert f"{file} is there already" in again.stderr
    assert f"./airlock report {demo.run_id} -o {file} --force" in again.stderr
    assert asks.invoke(main, [demo.run_id, "-o", str(file), "--force"]).exit_code == 0
    unknown = asks.invoke(main, ["nothing", "-o", str(tmp_path / "none.html")])
    assert unknown.exit_code == 2
    assert "no run 'nothing'" in unknown.stderr
    assert not (tmp_path / "none.html").exists()


def test_secrets_are_masked_and_data_cannot_end_the_script(
    demo: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    with demo.run_log.open("a") as log:
        log.write(f"token={SECRET}\n" + "".join(f"{one}\n" for one in HOSTILE))
    with (demo.path / "config.toml").open("a") as config:
        config.write(f'\n[more]\nname = "{SECRET}"\n')
    html = report_html(demo)
    assert SECRET not in html
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]


def test_a_run_with_many_answers_keeps_below_the_limit(demo: RunDir) -> None:
    whole = report_html(demo)
    smaller = report_html(demo, most_bytes=len(whole.encode()) - 20_000)
    assert len(smaller.encode()) <= len(whole.encode()) - 20_000
    assert '"left_out":0' in whole
    assert '"left_out":0' not in smaller


def test_every_series_of_the_charts_is_in_the_report() -> None:
    assert {"train.loss", "train.loss@*", "train.rank.time_wait_s@*", "gpu.power_w@*"} <= {
        *series()
    }


def test_each_licence_is_whole() -> None:
    texts = dict(licences())
    assert "WITHOUT WARRANTY OF ANY KIND" in texts["uPlot"]
    assert any("Apache License" in text for name, text in texts.items() if name != "uPlot")


@pytest.mark.runs
def test_a_report_opens_without_a_network_and_shows_the_figures_of_the_page(
    chromium: Any, demo: RunDir, environ: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    assert report(environ, demo.run_id, "-o", str(file)).returncode == 0
    with server(environ) as base:
        page = chromium.new_page()
        page.goto(f"{base}run?run={demo.run_id}")
        until(page, "document.querySelector('[data-live]').textContent.includes('over')")
        tiles, legends = page.evaluate(TILES), page.evaluate(LEGENDS)
    page, seen = opened(chromium, offline=True)
    page.goto(file.as_uri())
    until(page, "document.querySelectorAll('[data-id=training] canvas').length > 3")
    assert page.evaluate(TILES) == tiles
    assert page.evaluate(LEGENDS) == legends
    page.click('[data-part-link="evolution"]')
    until(page, "document.querySelector('[data-part=evolution] canvas') !== null")
    page.click('[data-part-link="config"]')
    until(page, "document.querySelectorAll('[data-id=config-rows] tr').length > 5")
    seen.assert_clean(file.as_uri())


@pytest.fixture
def without_some(demo: RunDir, tmp_path: Path) -> Path:
    """Return a report for which some snapshots were too much; made before there is a browser."""
    whole = report_html(demo)
    file = tmp_path / "run.html"
    file.write_text(report_html(demo, most_bytes=len(whole.encode()) - 5000))
    return file


@pytest.mark.runs
def test_a_report_without_some_snapshots_says_so_and_shows_the_others(
    without_some: Path, chromium: Any
) -> None:
    file = without_some
    page, seen = opened(chromium, offline=True)
    page.goto(f"{file.as_uri()}#evolution")
    until(page, "document.querySelectorAll('.example').length === 25")
    said = re.search(r"without (\d+) snapshots for its size", page.text_content("[data-made]"))
    assert said is not None
    slider = page.locator("[data-id=slider]")
    assert int(slider.get_attribute("max")) == 8 - int(said[1])
    slider.fill("0")
    until(page, "document.querySelector('[data-id=step]').textContent === 'Step 0'")
    assert page.inner_text("[data-id=said]").startswith("0 of 32 right")
    slider.fill(slider.get_attribute("max"))
    until(page, "document.querySelector('[data-id=step]').textContent === 'Step 300'")
    assert page.locator(".example .now ins").count() > 0  # what has changed since step 0
    page.fill("[data-id=search]", "last cebe")
    until(page, "document.querySelectorAll('.example').length === 1")
    seen.assert_clean(file.as_uri())


@pytest.mark.runs
def test_a_hostile_run_is_text_in_its_report(
    chromium: Any, demo: RunDir, environ: dict[str, str], tmp_path: Path
) -> None:
    run = hostile_run(demo)
    file = tmp_path / "run.html"
    assert report(environ, run.run_id, "-o", str(file)).returncode == 0
    page, seen = opened(chromium, offline=True)
    page.goto(file.as_uri())
    until(page, "document.querySelectorAll('.line').length > 0")
    assert page.title().startswith(NAME)
    assert EVIL in page.text_content('[data-id="verdicts"]')
    assert_harmless(page)
    page.click('[data-part-link="evolution"]')
    until(page, "document.querySelectorAll('.example').length > 6")
    assert all(one in page.text_content('[data-part="evolution"]') for one in HOSTILE)
    page.click('[data-part-link="config"]')
    until(page, "document.querySelectorAll('[data-id=config-rows] tr').length > 5")
    assert EVIL in page.text_content('[data-id="config-rows"]')
    assert_harmless(page)
    seen.assert_clean(file.as_uri())
