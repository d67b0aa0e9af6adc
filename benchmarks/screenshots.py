"""Pictures of the monitor, of real runs: `python -m benchmarks.screenshots`, into docs/images.

Two runs of the tiny profile are trained for it, one after the other, which takes a few minutes;
nothing of the pictures is made up. Needs Chromium and playwright (requirements-dev.txt).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.serving.chromium import chromium, find
from rundir.paths import ROOT

TOKEN = "a-token-for-the-pictures-000000"  # noqa: S105 - of a server that lives for minutes
DESKTOP, PHONE = {"width": 1360, "height": 900}, {"width": 390, "height": 844}
_START_S, _RUN_S = 600.0, 1200.0
_THROUGH = (
    "document.querySelector('[data-id=startup-said]')?.textContent.includes('ranks are through')"
)
_WAITING = "document.querySelectorAll('.timeline-picture .p-waiting').length >= NUM"
_ANSWERS = "document.querySelectorAll('.steps .ticks > *').length > 1"


@click.command()
@click.option("--ranks", default=4, show_default=True, help="Of the run whose start is shown.")
@click.option("--steps", default=400, show_default=True, help="Of both runs.")
@click.option("--runs-dir", type=click.Path(path_type=Path, exists=True), help="Use these runs.")
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), default=ROOT / "docs/images", help="Where."
)
def main(ranks: int, steps: int, runs_dir: Path | None, folder: Path) -> None:
    """Train two small runs and take pictures of the monitor's pages."""
    path = find()
    if path is None:
        raise click.ClickException("no Chromium here; apt-get install chromium")
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        runs = runs_dir or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "runs"
        runs.mkdir(exist_ok=True)
        environ = os.environ | {"AIRLOCK_RUNS_DIR": str(runs), "PYTHONPATH": str(ROOT)}
        base = stack.enter_context(_server(environ))
        browser = stack.enter_context(chromium(path))
        camera = _Camera(browser, base, folder)
        if runs_dir is None:
            first = _train(environ, steps, 2, "train.learning_rate=3e-4")
            if first.wait(_RUN_S) != 0:
                raise click.ClickException("the first run has failed")
            process = _train(environ, steps, ranks, "launch.start=cold", "launch.admit=serial")
            try:
                camera.startup(ranks)
                process.wait(_RUN_S)
            finally:
                process.terminate()
        camera.pages()


def _train(environ: dict[str, str], steps: int, ranks: int, *more: str) -> subprocess.Popen[bytes]:
    settings = [f"train.max_steps={steps}", "train.log_every_steps=1", *more]
    settings += ["train.eval_every_steps=50", "train.global_batch_size=16"]
    words = [word for one in settings for word in ("--set", one)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "launch", "run", "tiny", "--num-gpus", str(ranks), *words],
        env=environ,
        stdout=subprocess.DEVNULL,
    )


@contextlib.contextmanager
def _server(environ: dict[str, str]) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "monitor", "monitor", "--port", "0"],
        env=environ | {"AIRLOCK_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                yield found[0]
                return
        raise click.ClickException("the server has not said where it is")
    finally:
        process.terminate()
        process.wait(10)


class _Camera:
    """Takes pictures of pages."""

    def __init__(self, browser: Any, base: str, folder: Path) -> None:
        self._browser, self._base, self._folder = browser, base, folder

    def startup(self, ranks: int) -> None:
        """Take the start of the latest run while ranks wait, and when all are through."""
        page = self._open("", DESKTOP, "light")
        self._until(page, "document.querySelectorAll('tr[data-run]').length >= 2", _START_S)
        page.locator("tr[data-run] a").first.click()
        self._until(page, _WAITING.replace("NUM", str(ranks - 1)), _START_S)
        page.wait_for_timeout(6000)
        self._save(page, "monitor-starting")
        self._until(page, _THROUGH, _START_S)
        page.wait_for_timeout(1500)
        part = page.locator("section", has=page.locator("#startup-title"))
        part.screenshot(path=self._folder / "monitor-startup.png")
        page.context.close()

    def pages(self) -> None:
        """Take all pages of runs that are over."""
        page = self._open("run", DESKTOP, "light", ready="document.querySelector('canvas')")
        self._save(page, "monitor-run", height=1500)
        page = self._open("run", DESKTOP, "dark", ready="document.querySelector('canvas')")
        self._save(page, "monitor-run-dark", height=1500)
        page = self._open("run", PHONE, "light", ready="document.querySelector('canvas')")
        self._save(page, "monitor-phone")
        for scheme in ("light", "dark"):
            page = self._open("evolution", DESKTOP, scheme, ready=_ANSWERS)
            self._save(page, "monitor-answers" + ("-dark" if scheme == "dark" else ""))
        page = self._open("", DESKTOP, "light", ready="document.querySelector('tr[data-run]')")
        self._save(page, "monitor-runs", height=420)
        for check in page.locator("tr input").all()[:2]:
            check.check()
        page.click("[data-id=compare]")
        self._until(page, "document.querySelector('canvas')", 30)
        page.wait_for_timeout(1000)
        self._save(page, "monitor-compare", height=760)

    def _open(self, path: str, size: dict[str, int], scheme: str, ready: str = "true") -> Any:
        page = self._browser.new_context(viewport=size, color_scheme=scheme).new_page()
        page.goto(f"{self._base}{path}#token={TOKEN}")
        self._until(page, ready, 60)
        page.wait_for_timeout(2500)
        return page

    def _save(self, page: Any, name: str, height: int | None = None) -> None:
        if height is not None:
            page.set_viewport_size({"width": DESKTOP["width"], "height": height})
            page.wait_for_timeout(800)
        page.screenshot(path=self._folder / f"{name}.png")
        click.echo(f"{self._folder / name}.png")

    @staticmethod
    def _until(page: Any, expression: str, limit_s: float) -> None:
        give_up_mono = time.monotonic() + limit_s
        while not page.evaluate(f"Boolean({expression})"):
            if time.monotonic() > give_up_mono:
                raise click.ClickException(f"not within {limit_s:.0f} s: {expression}")
            page.wait_for_timeout(250)


if __name__ == "__main__":
    main()
