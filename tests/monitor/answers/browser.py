"""A real browser on a real server, and what it complains of."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from monitor.api.app import create_app
from monitor.api.server import bound
from monitor.api.settings import Settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the runs in `folder`; yield the URL."""
    listening = bound("127.0.0.1", 0, is_named=True)
    port = listening.getsockname()[1]
    app = create_app(Settings(runs_folder=folder, port=port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@dataclass(slots=True)
class Seen:
    """What a page has done that it should not: errors, and requests to elsewhere."""

    complaints: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)

    def assert_clean(self, url: str) -> None:
        """Assert that nothing was complained of, and that only `url` was asked."""
        assert self.complaints == []
        assert [one for one in self.urls if not one.startswith((f"{url}/", "blob:"))] == []


@contextlib.contextmanager
def browsing(**context: Any) -> Iterator[tuple[Any, Seen]]:
    """Yield an empty page of a headless Chromium, and what is seen of it."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(20_000)
        seen = Seen()
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("console", lambda one: _note(seen, one))
        page.on("request", lambda one: seen.urls.append(one.url))
        page.on("dialog", lambda one: _dismiss(seen, one))
        yield page, seen
        browser.close()


def _dismiss(seen: Seen, dialog: Any) -> None:
    seen.complaints.append(dialog.message)
    dialog.dismiss()


def _note(seen: Seen, message: Any) -> None:
    if message.type in ("error", "warning"):
        seen.complaints.append(message.text)


def wait_for(page: Any, holds: str, timeout_s: float = 20.0) -> None:
    """Wait until an expression of JavaScript is true; a string is no script, so CSP allows it."""
    until = time.monotonic() + timeout_s
    while not page.evaluate(holds):
        assert time.monotonic() < until, f"{holds}: {page.inner_text('main')[:2000]}"
        page.wait_for_timeout(50)
