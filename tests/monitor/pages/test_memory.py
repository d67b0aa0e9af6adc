"""A page that people leave open: hours of a run, in a time-lapse; nothing grows with them."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import psutil
import pytest

from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.browsing import until
from tests.monitor.serving import served

pytestmark = pytest.mark.long

STEP = "document.querySelector('[data-tile=step]').textContent"
BATCHES, STEPS = 24, 1200  # as many steps as a run of hours has


def test_the_memory_of_page_and_server_stays_flat_while_a_run_goes_on(
    chromium: Any, demo: RunDir, environ: dict[str, str]
) -> None:
    status = json.loads(demo.status.read_text())
    status |= {"exit_code": None, "phase": "training", "total_steps": 10**6}
    used_bytes, resident_bytes = [], []
    take(demo, "./start.sh tiny")
    with served(demo.path.parent, environ, what="monitor") as server:
        process = psutil.Process(server.process.pid)
        demo.status.write_text(json.dumps(status))
        page = chromium.new_page()
        page.goto(f"{server.url}/run")
        session = page.context.new_cdp_session(page)
        step = status["step"]
        for _ in range(BATCHES):
            step = append(demo, step)
            demo.status.write_text(json.dumps(status | {"step": step}))
            until(
                page, f"document.querySelector('[data-tile=step]').textContent.includes('{step:,}')"
            )
            page.wait_for_timeout(900)
            session.send("HeapProfiler.collectGarbage")
            used_bytes.append(session.send("Runtime.getHeapUsage")["usedSize"])
            resident_bytes.append(process.memory_info().rss)
        lines = page.locator(".line").count()
        numbers = page.locator(".line b").all_text_contents()
        nodes = page.evaluate("document.querySelectorAll('*').length")
    assert lines <= 2000
    assert [int(one) for one in numbers] == [*range(int(numbers[0]), int(numbers[0]) + lines)]
    assert nodes < 12_000
    half = BATCHES // 2
    for found in (used_bytes, resident_bytes):
        assert median(found[half:]) < 1.3 * median(found[:half]), found


def append(run: RunDir, step: int) -> int:
    """Add a batch of steps, and a line of the log for each; return the last step."""
    head = {"v": 1, "node": 0, "attempt": 0, "rank": 0, "pid": 1, "kind": "metric"}
    told = [
        head | {"t": 1.9e9 + at, "mono": 0.0 + at, "name": "train", "step": at, "loss": 1.0}
        for at in range(step + 1, step + STEPS + 1)
    ]
    with (run.path / "events/rank0.jsonl").open("a") as events:
        events.write("".join(json.dumps(row) + "\n" for row in told))
    with run.run_log.open("a") as log:
        log.write("".join(f"step {row['step']}  loss 1.0\n" for row in told))
    return step + STEPS
