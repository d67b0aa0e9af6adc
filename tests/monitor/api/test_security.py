"""Other sites, other names and other people get nothing, and change nothing."""

from __future__ import annotations

import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from monitor.api.request_guard import MOST_BODY_BYTES, MOST_URL_BYTES
from monitor.api.server_settings import token_of
from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.answers.made import client
from tests.monitor.browsing import TOKEN
from tests.monitor.serving import Server, make_run, served


@pytest.fixture
def live(server: Server, request: pytest.FixtureRequest) -> RunDir:
    """Make the folder of a run that trains: this process is its owner."""
    name = f"20260101-000000-{request.node.name[:60]}-0001"
    status = {"phase": "training", "exit_code": None}
    run = RunDir(make_run(server.folder, name, status=status))
    take(run, "this test")
    return run


def test_a_name_that_was_made_to_lead_here_is_refused(server: Server) -> None:
    run = make_run(server.folder, "20260101-000000-rebound-0001")
    for host in (
        "evil.com",
        f"evil.com:{server.port}",
        "127.0.0.1.evil.com",
        "",
        "a@localhost",
        "localhost/x",
        "localhost:x",
        "[::1",
    ):
        status, body = server.raw_get("/api/runs", f"Host: {host}")
        assert status in (400, 403), host
        assert run.name.encode() not in body
    assert server.raw_get("/api/runs", "Host: localhost", "Host: evil.com")[0] in (400, 403)
    for host in (f"localhost:{server.port}", "LOCALHOST", "localhost.", "[::1]", "127.0.0.1"):
        assert server.raw_get("/api/runs", f"Host: {host}")[0] == 200, host
    refused = server.get("/api/runs", headers={"Host": "box.example:80"})
    assert refused.status_code == 403
    assert refused.json()["hint"].startswith("./airlock serve --allow-host box.example   #")
    allowed = client(server.folder, allow_hosts=("box.example",))
    for host, status in (("box.example", 200), ("box.example:80", 200), ("a.box.example", 403)):
        assert allowed.get("/api/health", headers={"Host": host}).status_code == status
    anywhere = client(server.folder, allow_hosts=("*",))
    assert anywhere.get("/api/health", headers={"Host": "evil.com"}).status_code == 403


def test_a_post_of_another_site_changes_nothing(server: Server, live: RunDir) -> None:
    path = f"/api/runs/{live.run_id}/control"
    others = ("http://evil.com", "null", "http://127.0.0.1:1", "http://localhost.evil.com", "")
    for origin in (*others, "http://[::1"):
        answer = server.with_token(path, {"request": "stop"}, Origin=origin)
        assert answer.status_code == 403, origin
    site = {"Sec-Fetch-Site": "cross-site"}
    assert server.with_token(path, {"request": "stop"}, **site).status_code == 403
    assert server.client.post(path, data={"request": "stop"}).status_code == 401
    assert not list(live.control.iterdir())
    assert "access-control-allow-origin" not in server.get("/api/runs").headers
    answer = server.with_token(path, {"request": "stop"}, Origin=server.url)
    assert answer.status_code == 200, answer.text
    assert [file.name for file in live.control.iterdir()] == ["stop"]


def test_controls_need_the_very_token(server: Server, live: RunDir) -> None:
    path = f"/api/runs/{live.run_id}/control"
    wrong = ("", "Bearer", "Bearer x", f"Bearer {server.token[:-1]}", "Bearer ä")
    for given in (*wrong, f"Basic {server.token}", f"Bearer {server.token}x"):
        header = [(b"Authorization", given.encode())]
        answer = server.client.post(path, json={"request": "stop"}, headers=header)
        assert answer.status_code == 401, given
        assert answer.headers["www-authenticate"] == "Bearer"
    cookie = server.post(path, {"request": "stop"}, Cookie=f"token={server.token}")
    assert cookie.status_code == 401
    in_url = server.post(f"{path}?token={server.token}", {"request": "stop"})
    assert in_url.status_code == 401
    assert server.client.post(path, content=b"{").status_code == 401  # no body is read before
    assert not list(live.control.iterdir())


def test_a_body_is_json_whatever_a_client_calls_it(server: Server, live: RunDir) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d says
    path = f"/api/runs/{live.run_id}/control"
    assert server.with_token(path, {"request": "pause"}, **form).status_code == 200
    assert (live.control / "pause").is_file()


def test_the_token_is_kept_where_only_its_user_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path))
    file = tmp_path / "monitor/token"
    first, kept_in = token_of({})
    assert kept_in == str(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token_of({}) == (first, kept_in)
    file.chmod(0o644)  # who has read it meanwhile is not known
    assert token_of({})[0] != first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    own = "of-my-own-choice-1234"
    assert token_of({"AIRLOCK_TOKEN": own}) == (own, "AIRLOCK_TOKEN")


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"is_private": True}])  # noqa: S104
def test_reading_needs_the_token_where_others_can_reach_it(
    folder: Path, settings: dict[str, Any]
) -> None:
    make_run(folder)
    asks = client(folder, token=TOKEN, **settings)
    for path in ("/api/runs", "/api/runs/latest/config", "/metrics", "/api/evolution/datasets"):
        assert asks.get(path).status_code == 401, path
        header = {"Authorization": f"Bearer {TOKEN}"}
        assert asks.get(path, headers=header).status_code == 200, path
    for path in ("/api/health", "/api/openapi.json", "/"):
        assert asks.get(path).status_code == 200


def test_every_answer_forbids_the_browser_what_pages_do_not_need(server: Server) -> None:
    for path in ("/api/runs", "/api/nothing", "/api/runs?limit=x", "/metrics"):
        headers = server.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_what_is_too_large_is_refused(server: Server, live: RunDir) -> None:
    path = f"/api/runs/{live.run_id}/control"
    large = server.with_token(path, {"request": "x" * MOST_BODY_BYTES})
    pieces = (b"x" * 4096 for _ in range(2 * MOST_BODY_BYTES // 4096))
    header = {"Authorization": f"Bearer {server.token}"}
    streamed = server.client.post(path, content=pieces, headers=header)
    for answer in (large, streamed):
        assert answer.status_code == 413
        assert set(answer.json()) == {"error", "hint"}
    assert server.get("/api/runs?search=" + "x" * MOST_URL_BYTES).status_code == 414
    assert server.raw(b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000).split()[1] == b"400"
    assert server.get("/api/runs").status_code == 200


@pytest.mark.long
def test_a_thousand_requests_at_once_are_all_answered(
    folder: Path, environ: dict[str, str]
) -> None:
    for number in range(20):
        make_run(folder, f"20260101-0000{number:02}-tiny-0001")
    paths = ("/api/runs", "/api/runs/latest/status", "/api/runs/latest/events", "/metrics")
    with served(folder, environ) as server, ThreadPoolExecutor(1000) as threads:
        asked = [threads.submit(server.raw_get, paths[n % len(paths)]) for n in range(1000)]
        counts = Counter(one.result()[0] for one in asked)
        assert counts == {200: 1000}
        assert server.raw_get("/api/health")[0] == 200
        assert server.peak_bytes < 120 << 20
