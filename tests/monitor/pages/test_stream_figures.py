"""What the stream tells stands in charts and log as it was written: nothing twice, nothing lost."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.browsing import opened, server, until

pytestmark = pytest.mark.runs

NUM_STEPS = 12
LOSS = 'section[aria-label="Loss"]'


def test_figures_and_lines_of_the_stream_are_shown_once_each(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    status = json.loads(demo.status.read_text())
    status |= {"exit_code": None, "phase": "training", "total_steps": 10**6}
    demo.status.write_text(json.dumps(status))
    take(demo, "./start.sh tiny")
    with server(environ) as base:
        page, seen = opened(chromium, viewport={"width": 1400, "height": 900})
        page.goto(f"{base}run")
        until(page, f"document.querySelector('{LOSS} canvas') !== null")
        until(page, "document.querySelector('[data-live]').textContent === 'Live'")
        page.wait_for_timeout(1500)  # what was asked at first is answered
        num_asked = len(asked(seen))
        written = {status["step"] + 1 + at: 3.0 - at / 8 for at in range(NUM_STEPS)}
        for step, loss in written.items():
            tell(demo, step, loss)
            demo.status.write_text(json.dumps(status | {"step": step, "loss": loss}))
            time.sleep(0.15)
        last = (
            f"[...document.querySelectorAll('.line')].pop().textContent.endsWith('step {step} !')"
        )
        until(page, last)
        until(page, f"document.querySelector('{LOSS} .value').textContent === '{loss}'")
        page.locator(f"{LOSS} .canvas").press("End")
        shown = []
        for _ in written:
            shown.append(float(page.text_content(f"{LOSS} .value")))
            page.locator(f"{LOSS} .canvas").press("ArrowLeft")
        assert shown[::-1] == pytest.approx([*written.values()], abs=0.01)
        lines = page.locator(".line").all_text_contents()[-NUM_STEPS:]
        assert [int(re.findall(r"step (\d+) !", one)[0]) for one in lines] == [*written]
        # Less than one question for each: the stream itself has told them.
        assert len(asked(seen)) - num_asked < NUM_STEPS / 2
        seen.assert_clean(base)


def asked(seen: Any) -> list[str]:
    """Return the questions for figures and lines."""
    return [url for url in seen.urls if "/metrics?" in url or "/logs?" in url]


def tell(run: RunDir, step: int, loss: float) -> None:
    """Add a step, as training does."""
    head = {"v": 1, "node": 0, "attempt": 0, "rank": 0, "pid": 1, "kind": "metric"}
    row = head | {"t": time.time(), "mono": time.monotonic(), "name": "train", "step": step}
    with (run.path / "events/rank0.jsonl").open("a") as events:
        events.write(json.dumps(row | {"loss": loss}) + "\n")
    with run.run_log.open("a") as log:
        log.write(f"step {step} !\n")
