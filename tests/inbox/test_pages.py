"""`./airlock inbox … --monitor`: pages beside the daemon, which end with it and harm nothing."""

from __future__ import annotations

import re
import stat
import urllib.request

import psutil
import pytest

from tests.inbox.serving import Served
from tests.running import wait_for

pytestmark = pytest.mark.runs


def address(served: Served) -> str:
    """Return where the pages are, as the daemon's log tells."""

    def logged() -> str:
        line = re.search(r"monitor: (http://127\.0\.0\.1:\d+/)inbox", served.log())
        return line[1] if line else ""

    return wait_for(logged, why=f"no monitor: {served.log()}", timeout_s=60)


def monitors(served: Served) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if {"--until-end-of", str(served.layout.path)} <= set(process.info["cmdline"] or [])
    ]


def test_the_pages_are_there_until_the_daemon_is_killed(served: Served) -> None:
    served.start("--monitor")
    url = address(served)
    with urllib.request.urlopen(f"{url}api/inbox_files", timeout=20) as answer:  # noqa: S310 - its own
        assert answer.status == 200
    assert stat.S_IMODE(served.layout.monitor_log.stat().st_mode) == 0o600  # it has the token
    assert "#token" not in served.log()
    served.kill()
    wait_for(lambda: not monitors(served), why="the monitor stays", timeout_s=60)


def test_the_daemon_goes_on_without_the_pages(served: Served) -> None:
    served.start("--monitor")
    address(served)
    for process in monitors(served):
        process.kill()
    served.plan("after.json")
    served.wait_for(after="done")
    assert "the monitor has ended with -9; the inbox goes on without it" in served.log()
    served.end()


def test_without_what_pages_need_the_inbox_serves_all_the_same(served: Served) -> None:
    lacking = served.layout.path.parent / "lacking"
    lacking.mkdir()
    (lacking / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'uvicorn' else real(n, *a)\n"
    )
    served.start("--monitor", env={"PYTHONPATH": f"{lacking}:{served.environ['PYTHONPATH']}"})
    served.plan("a.json")
    served.wait_for(a="done")
    wait_for(lambda: "the monitor has ended with 4" in served.log(), why=served.log())
    assert "needs the package uvicorn" in served.log()
    served.end()
