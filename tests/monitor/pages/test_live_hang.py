"""The page of a run that hangs, in a real script: it waits at first, then has come to a stop."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rundir.paths import ROOT
from tests.monitor.browsing import opened, server, until
from tests.running import Start, ended, finish, run_folder

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SCRIPT = ROOT / "tests/hanging.py"
BANNER = "[...document.querySelectorAll('.banner b')].some((one) => one.textContent === '{}')"
RUN_S = 240.0


def place_of(case: str, mark: str) -> str:
    """Return FILE:LINE of the line of a case that bears that mark."""
    lines = SCRIPT.read_text().splitlines()
    first = lines.index(f"def {case}(rank: int) -> None:")
    at = next(n for n in range(first, len(lines)) if lines[n].endswith(f"# {mark}"))
    return f"hanging.py:{at + 1}"


def test_a_hang_appears_with_its_line(
    chromium: Any, airlock: Start, environ: dict[str, str]
) -> None:
    Path(environ["AIRLOCK_RUNS_DIR"]).mkdir(exist_ok=True)
    soon = ("--set", "launch.hang_timeout_s=20", "--set", "launch.admit=open")
    command = ("run", *soon, "--num-gpus", "2", str(SCRIPT), "sleeps")
    with server(environ) as base, ended(airlock(*command)) as process:
        run = run_folder(environ)
        page, seen = opened(chromium)
        page.goto(f"{base}run?run={run.run_id}")
        until(page, BANNER.format("Waiting"), RUN_S)
        waiting = page.text_content('[data-id="banners"]')
        until(page, BANNER.format("No progress"), RUN_S)
        hangs = page.text_content('[data-id="banners"]')
        assert re.search(r"\branks? [01]\b", waiting), waiting
        assert "rank 1" in hangs, hangs
        assert place_of("sleeps", "at fault") in hangs, hangs
        assert f"./airlock doctor {run.run_id}" in hangs
        seen.assert_clean(base)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        finish(process)
        until(page, "document.querySelector('[data-id=state]').textContent !== 'running'")
