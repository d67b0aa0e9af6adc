"""The page of a run while it goes on: a real training, a real server, a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.monitor.browsing import TOKEN, opened, server, until
from tests.running import ENDLESS, SERIAL, Start, ended, finish, run_folder

pytestmark = pytest.mark.runs

STATE = "document.querySelector('[data-id=state]')?.textContent"
STEP = "parseInt(document.querySelector('[data-tile=step]')?.textContent.replace(',', '')) || 0"
LOSS = "parseFloat(document.querySelector('[data-tile=loss]')?.textContent)"
RUN_S = 240.0


def test_a_run_is_seen_from_its_start_to_its_end(
    chromium: Any, airlock: Start, environ: dict[str, str]
) -> None:
    Path(environ["AIRLOCK_RUNS_DIR"]).mkdir(exist_ok=True)
    with server(environ) as base:
        page, seen = opened(chromium)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{base}#token={TOKEN}")
        until(page, "document.querySelector('.empty-title')?.textContent === 'No runs yet'")
        assert TOKEN not in page.url
        with ended(airlock(*ENDLESS, *SERIAL)) as process:
            until(page, "document.querySelectorAll('tr[data-run]').length === 1", RUN_S)
            run = run_folder(environ)
            page.click(f'tr[data-run="{run.run_id}"] a')
            until(
                page,
                "document.querySelector('[data-id=startup-said]')"
                "?.textContent.includes('All 2 ranks are through')",
                RUN_S,
            )
            # Each rank has a row with its way through the gate, and with its memory.
            phases = "[...document.querySelectorAll('.timeline-picture .span')]"
            classes = page.evaluate(f"{phases}.map((one) => one.getAttribute('class')).join(' ')")
            assert all(f"p-{one}" in classes for one in ("load", "process_group", "ddp")), classes
            figures = "[...document.querySelectorAll('.timeline-picture .figure')]"
            until(page, f"{figures}.filter((one) => /[MG]iB/.test(one.textContent)).length >= 2")
            until(page, f"{STEP} >= 1", RUN_S)
            first = page.evaluate(LOSS)
            until(page, f"{STEP} > 20 && {LOSS} < {first}", RUN_S)
            until(page, "document.querySelectorAll('[data-id=training] canvas').length > 3")
            page.click('[data-request="pause"]')
            until(page, f"{STATE} === 'paused'")
            assert page.locator('[data-request="resume"]').is_visible()
            at = page.evaluate(STEP)
            page.click('[data-request="resume"]')
            until(page, f"{STATE} === 'running' && {STEP} > {at}")
            page.click('[data-request="stop"]')
            code, _, err = finish(process)
            assert code == 20, err
            until(page, f"{STATE} === 'stopped'")
            until(page, "document.querySelector('[data-live]').textContent.includes('over')")
        seen.assert_clean(base)
