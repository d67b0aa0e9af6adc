"""A run of 100,000 steps: its picture is small and says so, its steps are exact when looked at."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from rundir.paths import RunDir
from tests.monitor.browsing import opened, server, until

pytestmark = pytest.mark.long

STEPS, SPIKE = 100_000, 61_803


def test_a_long_run_is_down_sampled_with_its_spikes_and_exact_when_zoomed(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    head = {"v": 1, "node": 0, "attempt": 0, "rank": 0, "pid": 1, "kind": "metric"}
    with (demo.path / "events/rank0.jsonl").open("w") as events:
        for step in range(1, STEPS + 1):
            loss = 50.0 if step == SPIKE else 1.0
            row = head | {"t": 1.8e9 + step, "mono": 0.0 + step, "name": "train", "step": step}
            events.write(json.dumps(row | {"loss": loss, "lr": 1e-4, "tokens_per_s": 1e4}) + "\n")
    told = json.loads(demo.status.read_text()) | {"step": STEPS, "total_steps": STEPS}
    demo.status.write_text(json.dumps(told))
    with server(environ) as base:
        page, seen = opened(chromium, viewport={"width": 1400, "height": 900})
        page.goto(f"{base}run")
        said = "document.querySelector('[data-id=charts-said]').textContent"
        until(page, f"{said}.includes('Down-sampled') && !{said}.includes('Reading')", 120)
        assert "band from minimum to maximum" in page.text_content(".chart-note")
        asked = f"fetch('api/runs/{demo.run_id}/metrics?series=train.loss&points=1000')"
        got = page.evaluate(f"{asked}.then((answer) => answer.json())")["series"]["train.loss"]
        assert len(got["steps"]) <= 1000
        assert max(got["max"]) == 50.0
        box = page.locator('section[aria-label="Loss"] .u-over').bounding_box()
        for share in (0.58, 0.66):  # around the spike
            page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
            page.mouse.down() if share < 0.6 else page.mouse.up()
        until(page, f"{said}.includes('Steps ')")
        shown = page.evaluate(said)
        give_up_mono = time.monotonic() + 120
        while not page.evaluate(f"{said}.includes('every one')"):
            assert time.monotonic() < give_up_mono, page.evaluate(said)
            page.locator('section[aria-label="Loss"] .canvas').press("+")
            page.wait_for_timeout(400)
        assert page.evaluate(said) != shown
        page.click('[data-id="zoom-out"]')
        until(page, f"{said}.includes('Down-sampled')")
        seen.assert_clean(base)
