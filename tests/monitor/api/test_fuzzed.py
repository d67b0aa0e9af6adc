"""A fuzzer that reads the OpenAPI document: whatever it sends, no answer is a fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.recorded import recorded
from tests.monitor.serving import Server, event, make_run, served

pytestmark = pytest.mark.runs  # it takes its time

_NUM_EXAMPLES = 60
_CALL_S = 60


@pytest.fixture
def server(folder: Path, environ: dict[str, str]) -> Iterator[Server]:
    """Serve runs of each kind, one of them live."""
    recorded(folder)
    odd = make_run(folder, "odd\nname", events={"rank0": [event(1.0), event(2.0, "x", "y")]})
    (odd / "status.json").write_text("{")
    live = RunDir(make_run(folder, status={"exit_code": None, "phase": "training"}))
    take(live, "this test")
    with served(folder, environ) as running:
        yield running


@pytest.mark.long
def test_no_request_that_the_document_allows_or_forbids_is_a_fault(server: Server) -> None:
    document = server.json("/api/openapi.json")
    for path in [one for one in document["paths"] if one.endswith("/stream")]:
        del document["paths"][path]  # they do not end
    document["servers"] = [{"url": server.url}]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    runs = [row["id"] for row in server.json("/api/runs")["runs"]]
    results: list[Any] = list(schema.get_all_operations())
    found = [one.ok() for one in results]
    assert len(found) == sum(len(methods) for methods in document["paths"].values())
    seen: dict[str, set[int]] = {}
    for operation in found:
        name = f"{operation.method} {operation.path}"
        _fuzz(server, operation, runs, seen.setdefault(name, set()))
    assert server.get("/api/health").status_code == 200
    assert any(200 in statuses for statuses in seen.values())
    print({key: sorted(value) for key, value in seen.items()})  # noqa: T201 - with -s


def _fuzz(server: Server, operation: Any, runs: list[str], seen: set[int]) -> None:
    """Send cases of one operation: with names that are made up, and with such as there are."""

    @settings(
        max_examples=_NUM_EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        for run in (None, runs[0], runs[-1]):
            status = _ask(server, case, run)
            seen.add(status)
            assert status < 500

    ask()


def _ask(server: Server, case: Any, run: str | None) -> int:
    """Send a case with the token; return the status."""
    names = getattr(case, "path_parameters", None) or {}
    if run is not None and "run" in names:
        case.path_parameters = {**names, "run": run}
    elif run is not None:
        return 200
    headers = {"Authorization": f"Bearer {server.token}"}
    try:
        return int(case.call(headers=headers, timeout=_CALL_S).status_code)
    except (ValueError, UnicodeError):  # what no client sends
        return 400


def test_bytes_that_are_no_request_end_no_server(server: Server) -> None:
    for data in (
        b"\x00" * 1000,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /api/runs/latest/control HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /api/runs?search=%ff%fe%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a browser that was told https
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        answer = server.raw(data)
        assert re.match(rb"HTTP/1.1 [24]\d\d ", answer) or answer == b"", (data, answer[:200])
    assert server.get("/api/health").status_code == 200
