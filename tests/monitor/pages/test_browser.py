"""The pages in a real browser, over two runs that nobody has to wait for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rundir.events import EventWriter
from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.answers.made import HOSTILE, new_run
from tests.monitor.browsing import opened, server, until
from tests.monitor.pages.hostile import EVIL, NAME, assert_harmless, hostile_run

pytestmark = pytest.mark.runs

PAGES = ("", "run", "evolution", "config", "inbox", "compare")


def text_of(page: Any, name: str) -> str:
    found: str = page.text_content(f'[data-id="{name}"]')
    return found


def test_the_runs_are_listed_and_one_is_opened_compared_and_filtered(
    chromium: Any, shown: tuple[str, RunDir]
) -> None:
    base, demo = shown
    page, seen = opened(chromium)
    page.goto(base)
    until(page, "document.querySelectorAll('tr[data-run]').length === 2")
    states = page.locator(".state").all_text_contents()
    assert set(states) == {"done", "stopped"}
    for check in page.locator("input[type=checkbox]").all():
        check.check()
    page.click('[data-id="compare"]')
    until(page, "document.querySelectorAll('[data-id=rows] tr').length > 0")
    until(page, "document.querySelector('canvas') !== null")
    differing = page.locator('[data-id="rows"] th').all_text_contents()
    assert "train.learning_rate" in differing  # and what is the same is left out
    assert "model.dtype" not in differing
    assert page.locator(".legend li").count() == 2
    page.goto(base)
    page.fill('[data-id="search"]', demo.run_id)
    until(page, "document.querySelectorAll('tr[data-run]').length === 1")
    page.fill('[data-id="search"]', "no such run")
    until(page, "document.querySelector('.empty-title') !== null")
    page.fill('[data-id="search"]', "")
    page.click(f'tr[data-run="{demo.run_id}"] a')
    until(page, "document.querySelector('[data-tile=loss]')?.textContent.startsWith('0')")
    assert text_of(page, "name") == demo.run_id
    seen.assert_clean(base)


def test_a_slow_answer_does_not_take_the_place_of_a_later_one(
    chromium: Any, shown: tuple[str, RunDir]
) -> None:
    base, _ = shown
    page, seen = opened(chromium)
    held: list[Any] = []
    page.route("**/api/runs?*state=stopped*", lambda route: held.insert(0, route))
    page.goto(base)
    until(page, "document.querySelectorAll('tr[data-run]').length === 2")
    page.select_option('[data-id="states"]', "stopped")
    page.select_option('[data-id="states"]', "done")
    until(page, "document.querySelectorAll('tr[data-run]').length === 1")
    with page.expect_response("**/api/runs?*state=stopped*"):
        held[0].continue_()
    page.wait_for_timeout(500)  # what it says is taken in
    assert page.locator(".state").all_text_contents() == ["done"]
    seen.assert_clean(base)


@pytest.mark.long
def test_lines_of_colours_that_look_alike_are_told_apart_by_dashes(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    ids = [f"20260101-00000{number}-copy-000{number}" for number in range(9)]
    for one in ids:
        shutil.copytree(demo.path, demo.path.parent / one)
    with server(environ) as base:
        page, seen = opened(chromium)
        page.goto(f"{base}compare?runs={','.join(ids)}")
        until(page, "document.querySelectorAll('.legend li').length === 9")
        signs = "[...document.querySelectorAll('.legend i')].map((one) => one.style.borderTopStyle)"
        styles = page.evaluate(signs)
        assert {*styles} == {"solid", "dashed"}
        assert styles.count("solid") <= 5  # blue, brown, green, pink, grey
        seen.assert_clean(base)


def test_what_a_run_holds_is_shown_as_text_whatever_it_is(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    hostile = hostile_run(demo)
    with server(environ) as base:
        page, seen = opened(chromium)
        page.goto(base)
        until(page, "document.querySelectorAll('tr[data-run]').length === 3")
        link = page.locator("tr[data-run] a", has_text="onerror")
        assert link.text_content() == NAME
        link.click()
        until(page, "document.querySelectorAll('.line').length > 0")
        until(page, "document.querySelectorAll('.event').length > 0")
        until(page, "document.querySelector('.verdict') !== null")
        until(page, f"document.querySelector('[data-id=training]').textContent.includes('{EVIL}')")
        shown = page.text_content("main")
        assert all(one in shown for one in (EVIL, "{{7*7}}${window.hit=1}", HOSTILE[2]))
        assert page.text_content('[data-id="verdicts"]').count(EVIL) >= 3
        assert_harmless(page)
        page.click('[data-view="config"]')
        until(page, "document.querySelectorAll('[data-id=config-rows] tr').length > 5")
        assert EVIL in page.text_content('[data-id="config-rows"]')
        assert_harmless(page)
        page.click('[data-view="evolution"]')
        until(page, "document.querySelectorAll('.example').length > 6")
        assert all(one in page.text_content("main") for one in HOSTILE)
        assert text_of(page, "run") == hostile.run_id
        assert "cannot be read" in text_of(page, "banners")
        assert_harmless(page)
        page.goto(f"{base}compare?runs={quote(hostile.run_id)},{demo.run_id}")
        until(page, "document.querySelectorAll('[data-id=rows] tr').length > 0")
        until(page, "document.querySelectorAll('.legend li').length === 2")
        assert EVIL in page.text_content('[data-id="rows"]')
        assert NAME in page.text_content(".legend")
        assert_harmless(page)
        seen.assert_clean(base)


def test_a_run_that_is_not_there_says_what_to_type(chromium: Any, environ: dict[str, str]) -> None:
    Path(environ["AIRLOCK_RUNS_DIR"]).mkdir()
    with server(environ) as base:
        page = chromium.new_page()
        page.goto(f"{base}run?run=nothing")
        until(page, "document.querySelector('main h1.hide') !== null")
        assert "no run 'nothing'" in page.text_content("main")
        page.goto(base)
        until(page, "document.querySelector('.empty-title') !== null")
        assert "./start.sh tiny" in page.text_content("main")


def test_a_failed_run_shows_why_and_the_command_to_copy(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    told = json.loads(demo.status.read_text()) | {"exit_code": 12, "phase": "failed"}
    demo.status.write_text(json.dumps(told | {"error": "rank 3 waits in all_reduce"}))
    incident = demo.incidents / "incident-attempt0"
    incident.mkdir()
    (incident / "verdict.md").write_text(
        "# run: hang\n\n**rank 3 hangs**\n\nIt waits at train.py:12.\n\n"
        "→ ./airlock run 32b --set launch.start=cold\n\n## What ran\n\nleft out\n"
    )
    with server(environ) as base:
        page = chromium.new_page()
        page.goto(f"{base}run")
        until(page, "document.querySelector('.verdict') !== null")
        assert "rank 3 waits in all_reduce" in text_of(page, "banners")
        assert f"./airlock doctor {demo.run_id}" in text_of(page, "banners")
        verdict = text_of(page, "verdicts")
        assert "Attempt 0: rank 3 hangs" in verdict
        assert "It waits at train.py:12." in verdict
        assert "left out" not in verdict
        commands = page.locator(".verdict .command code").all_text_contents()
        assert commands == ["./airlock run 32b --set launch.start=cold"]
        assert "failed" in text_of(page, "state")


def test_a_run_that_waits_and_then_hangs_says_for_whom_and_has_no_controls_without_the_token(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    status = json.loads(demo.status.read_text()) | {"exit_code": None, "phase": "training"}
    demo.status.write_text(json.dumps(status | {"waiting": "rank 0 has waited 0:31 for rank 1"}))
    take(demo, "./start.sh tiny")  # it goes on
    events = EventWriter(demo.event_file("launch"))
    hang = {"failed_rank": 1, "cause": "rank-behind", "title": "time.sleep at train.py:12"}
    said = "document.querySelector('[data-id=banners]').textContent.includes('{}')"
    with server(environ) as base:
        page, seen = opened(chromium)
        page.goto(f"{base}run")
        until(page, said.format("rank 0 has waited 0:31 for rank 1"))
        events.emit("error", "hang", **hang, still_s=21.0, limit_s=20.0, ends=False)
        until(page, said.format("rank 1: time.sleep at train.py:12"))
        titles = page.locator(".banner b").all_text_contents()
        assert {"Waiting", "No progress"} <= {*titles}
        assert f"./airlock doctor {demo.run_id}" in text_of(page, "banners")
        # Without the token the page only reads.
        assert page.locator('[data-id="no-token"]').is_visible()
        assert not page.locator('[data-request="stop"]').is_visible()
        seen.assert_clean(base)


def test_preparation_shows_how_far_it_is_and_what_it_holds(
    chromium: Any, folder: Path, environ: dict[str, str]
) -> None:
    run = new_run(folder)
    take(run, "./start.sh tiny")  # it goes on
    run.status.write_text(json.dumps({"phase": "preparing", "started_t": 1e9, "exit_code": None}))
    run.events.mkdir()
    events = EventWriter(run.event_file("prepare"))
    told = {"total_bytes": 4 << 20, "pss_bytes": 512 << 20}
    events.emit("start", "prepare", what="data")
    events.emit("metric", "prepare.progress", num_rows=1234, done_bytes=1 << 20, **told)
    said = "document.querySelector('[data-id=startup-said]').textContent"
    with server(environ, "--runs-dir", str(folder)) as base:
        page, seen = opened(chromium)
        page.goto(f"{base}run")
        until(page, f"{said}.includes('1,234 rows, 25 % of 4.00 MiB, with 512 MiB of memory')")
        events.emit("metric", "prepare.progress", num_rows=5678, done_bytes=3 << 20, **told)
        until(page, f"{said}.includes('5,678 rows, 75 %')")
        until(page, "document.querySelector('[data-id=timeline]').textContent.includes('512 MiB')")
        seen.assert_clean(base)


def test_alarms_are_kept_and_ring(chromium: Any, demo: RunDir, environ: dict[str, str]) -> None:
    rank0 = demo.path / "events/rank0.jsonl"
    lines = rank0.read_text().splitlines()
    last = next(at for at in reversed(range(len(lines))) if '"name": "train"' in lines[at])
    lines[last] = re.sub(r'"loss": [^,]+', '"loss": "nan"', lines[last])
    rank0.write_text("\n".join(lines) + "\n")
    with server(environ) as base:
        page = chromium.new_context().new_page()
        page.goto(f"{base}run")
        until(page, "document.querySelector('.banner.bad') !== null")
        assert "The loss was NaN at step" in text_of(page, "banners")
        page.uncheck('[aria-label="Alarm: Loss is NaN or infinite"]')
        until(page, "document.querySelector('.banner.bad') === null")
        page.reload()
        until(page, "document.querySelectorAll('.line').length > 0")
        assert not page.is_checked('[aria-label="Alarm: Loss is NaN or infinite"]')
        assert page.locator(".banner.bad").count() == 0


def test_the_theme_is_kept_and_the_page_fits_a_phone(
    chromium: Any, shown: tuple[str, RunDir]
) -> None:
    base, _ = shown
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    for name in PAGES:
        page.goto(base + name)
        page.wait_for_load_state("networkidle" if name in ("config", "inbox") else "load")
        page.wait_for_timeout(1000)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, f"{name}: {wide}"
    page.goto(base)
    page.click("[data-theme-switch]")
    page.click("[data-theme-switch]")
    page.goto(f"{base}run")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_prefix_of_a_proxy_changes_nothing(chromium: Any, shown: tuple[str, RunDir]) -> None:
    base, demo = shown
    context = chromium.new_context()

    def pass_on(route: Any) -> None:
        answer = route.fetch(url=route.request.url.replace("/user/x/proxy/8080/", "/"))
        route.fulfill(response=answer)

    # Streams have no end, so that they cannot be passed on whole: the page goes on without.
    context.route("**/user/x/proxy/8080/**", pass_on)
    context.route("**/stream*", lambda route: route.abort())
    page = context.new_page()
    page.goto(f"{base}user/x/proxy/8080/evolution?run={demo.run_id}")
    until(page, "document.querySelector('canvas') !== null")
    page.click('[data-view="config"]')
    until(page, "document.querySelectorAll('[data-id=config-rows] tr').length > 5")
    assert "/user/x/proxy/8080/config" in page.url
