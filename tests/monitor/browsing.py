"""A real browser that looks at real servers, and what it saw beside the page."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.monitor.serving import served

TOKEN = "a-token-of-the-tests-0123456789"  # noqa: S105 - made up


@dataclass(slots=True)
class Seen:
    """What happened in all pages of a browser."""

    said: list[str] = field(default_factory=list)  # errors of scripts, of CSP, on the console
    urls: list[str] = field(default_factory=list)

    def assert_clean(self, base: str) -> None:
        """Assert that nothing was blocked or broken, and that no request went elsewhere."""
        assert self.said == []
        assert self.urls
        assert [url for url in self.urls if not url.startswith((base, "blob:", "data:"))] == []


def opened(chromium: Any, **context: Any) -> tuple[Any, Seen]:
    """Return an empty page in a context of its own, and what happens in it."""
    made, seen = chromium.new_context(**context), Seen()
    # The stream that a page leaves behind is no error, and one that has ended is none either.
    made.on("request", lambda request: seen.urls.append(request.url))
    made.on("console", lambda message: _told(seen, message))
    made.on("weberror", lambda error: seen.said.append(str(error.error)))
    return made.new_page(), seen


def _told(seen: Seen, message: Any) -> None:
    if message.type in ("error", "warning"):
        seen.said.append(message.text)


@contextlib.contextmanager
def server(environ: dict[str, str], *options: str) -> Iterator[str]:
    """Yield the address of a real `airlock monitor`, as it ends with a slash."""
    own = environ | {"AIRLOCK_TOKEN": TOKEN}
    with served(None, own, *options, what="monitor") as running:
        yield f"{running.url}/"


def until(page: Any, expression: str, timeout_s: float = 120) -> None:
    """Wait until an expression holds in the page.

    From outside: a loop within the page would have to evaluate text, which the policy forbids.
    """
    give_up_mono = time.monotonic() + timeout_s
    while not page.evaluate(expression):
        assert time.monotonic() < give_up_mono, f"{expression}\n{page.inner_text('body')[:3000]}"
        page.wait_for_timeout(100)
