"""Headless Chromium, of the machine: for pictures and for figures of pages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

# Debian's, Ubuntu's, Google's.
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Return the browser's program, or None where there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def chromium(path: str, *options: str) -> Iterator[Any]:
    """Yield the browser of that path, by playwright, and end it after the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", *options]
        )
        try:
            yield found
        finally:
            found.close()
