"""The page of answers in a real browser: steps, differences, filters, export, hostile texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from monitor.answers.words import word_diff
from rundir.atomic import write_text
from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.answers.made import HOSTILE, example, new_run, snapshot, with_ways
from tests.monitor.browsing import opened, server, until
from tests.monitor.recorded import DATASET, EARLIER
from tests.running import wait_for

pytestmark = pytest.mark.runs  # a browser

SHOWN = "document.querySelectorAll('.example').length"
PAGE = 25  # examples that are shown at once
STEP = "document.querySelector('[data-id=step]').textContent"


def step(page: Any) -> str:
    text: str = page.inner_text("[data-id=step]")
    return text


def filters(page: Any) -> dict[str, int]:
    texts = page.locator("[data-id=filters] button").all_text_contents()
    return {one.rpartition(" ")[0].strip(): int(one.rpartition(" ")[2]) for one in texts}


@pytest.fixture
def page(chromium: Any, shown: tuple[str, RunDir]) -> Iterator[Any]:
    """Yield the page of the recorded answers."""
    base, _ = shown
    opened_page, seen = opened(chromium, accept_downloads=True)
    opened_page.goto(f"{base}evolution")
    until(opened_page, f"{SHOWN} === {PAGE}")
    yield opened_page
    seen.assert_clean(base)


def test_the_slider_moves_from_wrong_answers_to_right_ones(page: Any) -> None:
    assert step(page) == "Step 300"
    page.locator("[data-id=slider]").fill("0")
    until(page, "document.querySelectorAll('.mark.right').length === 0")
    until(
        page, "document.querySelector('[data-id=said]').innerText.startsWith('0 of 32 right (0 %)')"
    )
    page.locator("[data-id=slider]").fill("8")
    until(page, "document.querySelectorAll('.mark.right').length > 10")
    assert page.locator(".example").first.locator(".now").inner_text() == "e"


def test_keys_move_the_step_and_it_plays_to_the_end(page: Any) -> None:
    page.keyboard.press("ArrowLeft")
    assert step(page) == "Step 250"
    page.keyboard.press("ArrowRight")
    assert step(page) == "Step 300"
    page.keyboard.press("Space")
    until(page, f"{STEP} !== 'Step 300'")  # it begins anew
    assert page.get_attribute("[data-id=play]", "aria-pressed") == "true"
    page.keyboard.press("Space")
    assert page.get_attribute("[data-id=play]", "aria-pressed") == "false"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.dataset.id") == "search"
    page.keyboard.type("last cebe")
    until(page, f"{SHOWN} === 1")
    page.locator(".way").first.click(position={"x": 3, "y": 10})
    assert step(page) == "Step 0"


def test_filters_show_what_was_learned_and_what_was_lost(page: Any) -> None:
    counts = filters(page)
    assert counts["All"] == 32
    for name in ("Newly right", "Regressed", "Never right", "Unstable"):
        page.get_by_role("button", name=name).click()
        until(page, f"{SHOWN} === {min(counts[name], PAGE)}")
        assert counts[name] > 0
        assert page.locator(f".example:has-text('{name}')").count() == min(counts[name], PAGE)


def test_two_runs_stand_side_by_side(page: Any) -> None:
    labels = page.locator("[data-id=base] option").all_text_contents()
    other = next(one for one in labels if one.endswith(EARLIER[-4:]))
    page.locator("[data-id=base]").select_option(label=other)
    until(page, "document.body.textContent.includes('0d3a · step 100')")
    assert page.locator(".evolution .chart ul.legend li").count() == 6
    page.locator("[data-id=base]").select_option("expected")
    until(page, "document.querySelector('.example .sides').children[1].hidden")


def test_a_step_is_shown_while_the_answers_of_another_run_are_on_their_way(page: Any) -> None:
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route(f"**/snapshots?run={EARLIER}", hold)
    page.locator("[data-id=base]").select_option(label=EARLIER)
    page.locator("[data-id=slider]").fill("0")
    until(page, f"{STEP} === 'Step 0'")
    assert len(held) == 1
    held[0].continue_()
    until(page, "document.body.textContent.includes('0d3a · step 0')")


def test_all_answers_are_exported(page: Any) -> None:
    for form in ("jsonl", "csv"):
        with page.expect_download() as waiting:
            page.locator(f"[data-format={form}]").click()
        path = Path(waiting.value.path())
        assert waiting.value.suggested_filename.endswith(f"{DATASET}.{form}")
        assert len(path.read_text().splitlines()) >= 32 * 9


def test_a_page_of_answers_without_any_says_so(
    chromium: Any, folder: Path, environ: dict[str, str]
) -> None:
    new_run(folder)
    with server(environ, "--runs-dir", str(folder)) as base:
        page, seen = opened(chromium)
        page.goto(f"{base}evolution")
        until(page, "document.body.textContent.includes('No answers yet')")
        seen.assert_clean(base)


def test_a_new_snapshot_is_shown_to_whoever_looks_at_the_last_one(
    chromium: Any, folder: Path, environ: dict[str, str]
) -> None:
    run = with_ways(folder)
    take(run, "./start.sh tiny")  # the run goes on
    with server(environ, "--runs-dir", str(folder)) as base:
        page, seen = opened(chromium)
        page.goto(f"{base}evolution?run={run.run_id}")
        until(page, f"{STEP} === 'Step 100'")
        new = snapshot(150, [example(n, is_right=True) for n in range(4)])
        write_text(run.evolution("d", 150), json.dumps(new))
        until(page, f"{STEP} === 'Step 150'")
        wait_for(lambda: filters(page)["Regressed"] == 0, why="the filters are of another step")
        seen.assert_clean(base)


def test_differences_are_the_same_in_the_browser_and_in_the_api(page: Any) -> None:
    pairs = [
        ("the cat sat on the mat", "the dog sat down on a mat"),
        ("a b c d e f", "f e d c b a"),
        ("日本語です。", "日本人です!"),
        ("x\u00a0y é\n\nz", "x y é\nz _1²"),
        (" ".join(map(str, range(400))), " ".join(map(str, range(0, 800, 2)))),
        *pairwise(HOSTILE),
    ]
    script = (
        "async pairs => { const { wordDiff } = await import('./static/words.js');"
        " return JSON.stringify(pairs.map(([a, b]) => wordDiff(a, b))); }"
    )
    found = json.loads(page.evaluate(script, [list(one) for one in pairs]))
    assert found == [[list(piece) for piece in word_diff(*one)] for one in pairs]


def test_nothing_is_wider_than_the_screen(page: Any) -> None:
    for width in (360, 768, 1360):
        page.set_viewport_size({"width": width, "height": 800})
        page.reload()
        until(page, f"{SHOWN} === {PAGE}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
