"""The page of an inbox whose daemon runs: what is dropped is shown from its arrival to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inbox.serving import Served, serving
from tests.monitor.browsing import TOKEN, opened, server, until
from tests.monitor.pages.hostile import assert_harmless

pytestmark = pytest.mark.runs

STATE = "document.querySelector('[data-id=state]').textContent"
EVIL = "<img src=x onerror=window.hit=1>.json"
LISTED = (
    "[...document.querySelectorAll('section[aria-label=\"{}\"] tbody tr')]"
    ".some((row) => row.textContent.includes('{}'))"
)


def listed(page: Any, title: str, name: str) -> None:
    """Wait until a file stands in that list."""
    until(page, LISTED.format(title, name))


@pytest.fixture
def inbox(environ: dict[str, str], tmp_path: Path) -> Iterator[Served]:
    """Yield an inbox that runs, with a stand-in for start.sh that ends when it is told to."""
    with serving(tmp_path / "folder", environ) as found:
        yield found


def test_a_dropped_file_is_seen_waiting_trained_or_set_aside_and_its_name_is_text(
    chromium: Any, inbox: Served, environ: dict[str, str]
) -> None:
    options = ("--inbox", str(inbox.layout.path), "--runs-dir", str(inbox.layout.runs))
    with server(environ, *options) as base:
        page, seen = opened(chromium)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{base}inbox#token={TOKEN}")
        until(page, "document.body.textContent.includes('Nothing has been dropped yet')")
        first_may_end = inbox.plan_long("first.json")
        listed(page, "Training now", "first.json")
        until(page, f"{STATE} === 'training'")
        inbox.plan("second.json")
        inbox.drop(EVIL, "<script>window.hit=1</script>")
        listed(page, "Waiting", "second.json")
        listed(page, "Waiting", EVIL)
        page.click('[data-request="pause"]')
        until(page, "!document.querySelector('[data-request=resume]').hidden")
        first_may_end.touch()
        listed(page, "Done", "first.json")
        until(page, f"{STATE} === 'paused'")
        page.click('[data-request="resume"]')
        listed(page, "Done", "second.json")
        listed(page, "Set aside", EVIL)
        refused = page.text_content('section[aria-label="Set aside"]')
        assert "cannot be read" in refused, refused
        assert_harmless(page)
        page.click('[data-request="stop"]')
        until(page, f"{STATE} === 'stopped'")
        seen.assert_clean(base)
