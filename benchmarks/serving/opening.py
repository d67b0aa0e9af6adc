"""Pages as they open in a browser that keeps nothing: first paint, and when the figures are there.

The time counts from the navigation's begin; it is the browser's own (Performance API).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.serving.measured_server import Server

_TIMES = 5
_LONGEST_S = 120.0
# Notes when what is waited for is drawn: the next frame after it is in the document.
_WATCH = """
window.drawn = null;
const isThere = () => WANTED;
const look = () => {
  if (isThere()) requestAnimationFrame(() => { window.drawn = performance.now(); });
  else requestAnimationFrame(look);
};
addEventListener("DOMContentLoaded", look);
"""
_ROWS = "document.querySelectorAll('tr[data-run]').length >= {}"
_LOSS = (
    "document.querySelector('section[aria-label=\"Loss\"] canvas') !== null"
    " && /[0-9]/.test(document.querySelector('section[aria-label=\"Loss\"] .value')?.textContent)"
)
_COMPARED = (
    "document.querySelector('canvas') !== null && document.querySelectorAll('.legend li').length"
    " >= {}"
)
_PAINT = (
    "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint')"
    "?.startTime ?? null"
)


def openings(browser: Any, server: Server, runs: Sequence[str], num_runs: int) -> dict[str, Any]:
    """Open each page five times; return the seconds until the first paint and until its figures."""
    pages = {
        f"{num_runs} runs": ("", _ROWS.format(min(50, num_runs))),
        "one run": (f"run?run={runs[0]}", _LOSS),
        f"{len(runs)} runs compared": (
            f"compare?runs={','.join(runs)}",
            _COMPARED.format(len(runs)),
        ),
    }
    found = {}
    for name, (path, wanted) in pages.items():
        opened = [_open(browser, f"{server.url}/{path}", wanted) for _ in range(_TIMES)]
        found[name] = {
            "first_paint_s": _told([paint for paint, _ in opened]),
            "figures_s": _told([drawn for _, drawn in opened]),
        }
    return found


def _open(browser: Any, url: str, wanted: str) -> tuple[float, float]:
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    context.add_init_script(_WATCH.replace("WANTED", wanted))
    page = context.new_page()
    page.goto(url)
    give_up_mono = time.monotonic() + _LONGEST_S
    while (drawn := page.evaluate("window.drawn")) is None:
        assert time.monotonic() < give_up_mono, f"{url}: {page.inner_text('body')[:1000]}"
        time.sleep(0.05)
    paint = page.evaluate(_PAINT)
    context.close()
    return paint / 1000, drawn / 1000


def _told(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
