"""How soon the monitor's pages are there, and what they hold: `python -m benchmarks.pages`.

`[--runs N] [--steps N] [--hours N] [--quick] [--json]`: a page of all runs, of one and of twelve
compared, over run folders as training writes them; each is opened in a new Chromium context, which
has nothing kept. Then a run's page is left open while hours of a run's events are written in
minutes. Needs Chromium and playwright (requirements-dev.txt).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from benchmarks.report import machine
from benchmarks.serving.chromium import chromium, find
from benchmarks.serving.lapse import lapse
from benchmarks.serving.long_runs import write_runs
from benchmarks.serving.measured_server import Server
from benchmarks.serving.opening import openings

_MOST_PAINT_S, _MOST_GROWTH = 1.5, 1.3
_COMPARED = 12  # as many as a page compares


def holds(cases: dict[str, Any]) -> dict[str, bool]:
    """Return each claim, and whether it holds."""
    found = {
        f"{name}: first paint <= 1.5 s": one["first_paint_s"]["median"] <= _MOST_PAINT_S
        for name, one in cases["opening"].items()
    }
    samples = cases["left open"]["samples"]
    middle = len(samples) // 2
    for name in ("page_heap_bytes", "page_nodes", "server_rss_bytes"):
        before = max(one[name] for one in samples[1 : middle + 1])  # the first is of the start
        after = max(one[name] for one in samples[middle + 1 :])
        found[f"left open: {name}, second half <= 1.3 x first"] = after <= _MOST_GROWTH * before
    return found


@click.command()
@click.option("--runs", "num_runs", default=50, show_default=True, help="Run folders.")
@click.option("--steps", default=100_000, show_default=True, help="Steps of each, all logged.")
@click.option("--hours", default=8, show_default=True, help="Of a run with a step each second.")
@click.option("--quick", is_flag=True, help="12 runs of 5,000 steps; one hour.")
@click.option("--json", "as_json", is_flag=True, help="Print one object as the last line.")
def main(*, num_runs: int, steps: int, hours: int, quick: bool, as_json: bool) -> None:
    """Measure the monitor's pages in Chromium."""
    path = find()
    if path is None:
        raise click.ClickException("no Chromium here; apt-get install chromium")
    if quick:
        num_runs, steps, hours = 12, 5000, 1
    with tempfile.TemporaryDirectory() as name, chromium(path) as browser:
        folder = Path(name)
        runs = folder / "runs"
        write_runs(runs, num_runs, steps)
        newest = sorted((one.name for one in runs.iterdir()), reverse=True)[:_COMPARED]
        with Server(runs, folder / "cache", "monitor") as server:
            indexed_s = sum(server.index(one) for one in newest)
        with Server(runs, folder / "cache", "monitor") as server:
            opening = openings(browser, server, newest, num_runs)
        cases = {
            "indexing": {"runs": len(newest), "seconds": indexed_s},
            "opening": opening,
            "left open": lapse(browser, folder, hours),
        }
        version = browser.version
    claims = holds(cases)
    told = {
        "machine": machine() | {"runs": num_runs, "steps": steps, "chromium": version},
        "cases": cases,
        "claims": claims,
        "holds": all(claims.values()),
    }
    click.echo(json.dumps(told) if as_json else json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
