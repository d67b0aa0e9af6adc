"""What the stream tells stands in charts and log as it was written: nothing twice, nothing lost."""

from __future__ import annotations

import json
import re
import shutil
import time
from typing import Any

import pytest

from monitor.metrics.tail import MOST_BEHIND_BYTES
from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.browsing import opened, server, until

pytestmark = pytest.mark.runs

NUM_STEPS = 12
LOSS = 'section[aria-label="Loss"]'


def test_figures_and_lines_of_the_stream_are_shown_once_each(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    status = goes_on(demo)
    with server(environ) as base:
        page, seen = opened(chromium, viewport={"width": 1400, "height": 900})
        look_at(page, base, demo)
        num_asked = len(asked(seen))
        written = {status["step"] + 1 + at: 3.0 - at / 8 for at in range(NUM_STEPS)}
        for step, loss in written.items():
            tell(demo, {step: loss})
            demo.status.write_text(json.dumps(status | {"step": step, "loss": loss}))
            time.sleep(0.15)
        last = (
            f"[...document.querySelectorAll('.line')].pop().textContent.endsWith('step {step} !')"
        )
        until(page, last)
        assert losses(page, written) == pytest.approx([*written.values()], abs=0.01)
        lines = page.locator(".line").all_text_contents()[-NUM_STEPS:]
        assert [int(re.findall(r"step (\d+) !", one)[0]) for one in lines] == [*written]
        # Less than one question for each: the stream itself has told them.
        assert len(asked(seen)) - num_asked < NUM_STEPS / 2
        seen.assert_clean(base)


def test_what_the_stream_leaves_out_is_asked_for_and_a_run_that_is_gone_is_let_go(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    first = goes_on(demo)["step"] + 1
    with server(environ) as base:
        page, seen = opened(chromium, viewport={"width": 1400, "height": 900})
        look_at(page, base, demo)
        # Now and then the page asks anyway: right after that, a hole would stay.
        num_asked = len(figures_asked(seen))
        while len(figures_asked(seen)) == num_asked:
            tell(demo, {first: 3.125})
            first += 1
            page.wait_for_timeout(500)
        page.wait_for_timeout(2000)  # what was asked is answered
        at_once = {first + at: 3.0 - at / 8 for at in range(NUM_STEPS)}
        tell(demo, at_once, pad="x" * (2 * MOST_BEHIND_BYTES // NUM_STEPS))
        later = {first + NUM_STEPS + at: 1.125 + at / 4 for at in range(3)}
        for step, loss in later.items():
            time.sleep(0.5)
            tell(demo, {step: loss})
        written = at_once | later
        assert losses(page, written) == pytest.approx([*written.values()], abs=0.01)
        seen.assert_clean(base)
        shutil.rmtree(demo.path)
        until(page, "document.querySelector('[data-live]').textContent === 'Run is gone'")
        assert page.locator(f"{LOSS} canvas").count() > 0  # what was shown stays


def goes_on(run: RunDir) -> dict[str, Any]:
    """Make a run look as if it trained; return its status."""
    status: dict[str, Any] = json.loads(run.status.read_text())
    status |= {"exit_code": None, "phase": "training", "total_steps": 10**6}
    run.status.write_text(json.dumps(status))
    take(run, "./start.sh tiny")
    return status


def look_at(page: Any, base: str, run: RunDir) -> None:
    """Open the page of the run, and wait until its stream tells what is new."""
    page.goto(f"{base}run?run={run.run_id}")
    until(page, f"document.querySelector('{LOSS} canvas') !== null")
    until(page, "document.querySelector('[data-live]').textContent === 'Live'")
    page.wait_for_timeout(1500)  # what was asked at first is answered


def losses(page: Any, written: dict[int, float]) -> list[float]:
    """Return the last losses of the chart, as many as were written, once the last is there."""
    last = [*written.values()][-1]
    until(page, f"document.querySelector('{LOSS} .value').textContent === '{last}'")
    page.locator(f"{LOSS} .canvas").press("End")
    shown = []
    for _ in written:
        shown.append(float(page.text_content(f"{LOSS} .value")))
        page.locator(f"{LOSS} .canvas").press("ArrowLeft")
    return shown[::-1]


def asked(seen: Any) -> list[str]:
    """Return the questions for figures and lines."""
    return [url for url in seen.urls if "/metrics?" in url or "/logs?" in url]


def figures_asked(seen: Any) -> list[str]:
    """Return the questions for figures."""
    return [url for url in seen.urls if "/metrics?" in url]


def tell(run: RunDir, steps: dict[int, float], **more: str) -> None:
    """Add steps with their losses, all at once, as training does."""
    head = {"v": 1, "node": 0, "attempt": 0, "rank": 0, "pid": 1, "kind": "metric"} | more
    head |= {"t": time.time(), "mono": time.monotonic(), "name": "train"}
    rows = [json.dumps(head | {"step": step, "loss": loss}) for step, loss in steps.items()]
    with (run.path / "events/rank0.jsonl").open("a") as events:
        events.write("".join(f"{row}\n" for row in rows))
    with run.run_log.open("a") as log:
        log.write("".join(f"step {step} !\n" for step in steps))
