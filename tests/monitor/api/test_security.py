"""Other sites, other names and other people get nothing, and change nothing."""

from __future__ import annotations

import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from monitor.api.app import MOST_BODY_BYTES
from monitor.api.request_guard import MOST_URL_BYTES
from rundir.owner import take
from rundir.paths import RunDir
from tests.monitor.serving import make_run, served


@pytest.fixture
def live(folder: Path) -> RunDir:
    """Make the folder of a run that trains: this process is its owner."""
    run = RunDir(make_run(folder, status={"phase": "training", "exit_code": None}))
    take(run, "this test")
    return run


def test_a_name_that_was_made_to_lead_here_is_refused(
    folder: Path, environ: dict[str, str]
) -> None:
    make_run(folder)
    with served(folder, environ) as server:
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
            assert b"20260101" not in body
        assert server.raw_get("/api/runs", "Host: localhost", "Host: evil.com")[0] in (400, 403)
        for host in (f"localhost:{server.port}", "LOCALHOST", "localhost.", "[::1]", "127.0.0.1"):
            assert server.raw_get("/api/runs", f"Host: {host}")[0] == 200, host
        hint = server.get("/api/runs", headers={"Host": "box.example"}).json()["hint"]
    with served(folder, environ, *hint.split("   #")[0].split()[2:]) as server:
        assert server.raw_get("/api/runs", "Host: box.example")[0] == 200


def test_a_post_of_another_site_changes_nothing(live: RunDir, environ: dict[str, str]) -> None:
    path = f"/api/runs/{live.run_id}/control"
    with served(live.path.parent, environ) as server:
        own = f"http://127.0.0.1:{server.port}"
        others = ("http://evil.com", "null", "http://127.0.0.1:1", "http://localhost.evil.com", "")
        for origin in others:
            answer = server.with_token(path, {"request": "stop"}, Origin=origin)
            assert answer.status_code == 403, origin
        site = {"Sec-Fetch-Site": "cross-site"}
        assert server.with_token(path, {"request": "stop"}, **site).status_code == 403
        form = httpx.post(f"{own}{path}", data={"request": "stop"}, trust_env=False)
        assert form.status_code == 401
        assert not list(live.control.iterdir())
        assert "access-control-allow-origin" not in server.get("/api/runs").headers
        answer = server.with_token(path, {"request": "stop"}, Origin=own)
        assert answer.status_code == 200, answer.text
    assert [file.name for file in live.control.iterdir()] == ["stop"]


def test_controls_need_the_very_token(live: RunDir, environ: dict[str, str]) -> None:
    path = "/api/runs/latest/control"
    with served(live.path.parent, environ) as server:
        wrong = ("", "Bearer", "Bearer x", f"Bearer {server.token[:-1]}", "Bearer ä")
        for given in (*wrong, f"Basic {server.token}", f"Bearer {server.token}x"):
            answer = httpx.post(
                f"{server.url}{path}",
                json={"request": "stop"},
                headers=[(b"Authorization", given.encode())],
                trust_env=False,
            )
            assert answer.status_code == 401, given
            assert answer.headers["www-authenticate"] == "Bearer"
        cookie = server.post(path, {"request": "stop"}, Cookie=f"token={server.token}")
        assert cookie.status_code == 401
        in_url = server.post(f"{path}?token={server.token}", {"request": "stop"})
        assert in_url.status_code == 401
    assert not list(live.control.iterdir())


def test_the_token_is_kept_where_only_its_user_reads_it(
    folder: Path, environ: dict[str, str]
) -> None:
    file = Path(environ["AIRLOCK_CACHE_DIR"], "monitor/token")
    with served(folder, environ) as server:
        first = server.token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with served(folder, environ) as server:
        assert server.token == first
    file.chmod(0o644)  # who has read it meanwhile is not known
    with served(folder, environ) as server:
        assert server.token != first
    with served(folder, {**environ, "AIRLOCK_TOKEN": "of-my-own-choice-1234"}) as server:
        assert server.token == "of-my-own-choice-1234"  # noqa: S105


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--private",)])  # noqa: S104
def test_reading_needs_the_token_where_others_can_reach_it(
    folder: Path, environ: dict[str, str], words: tuple[str, ...]
) -> None:
    make_run(folder)
    with served(folder, environ, *words) as server:
        for path in ("/api/runs", "/api/runs/latest/config", "/metrics", "/api/evolution/datasets"):
            assert server.get(path).status_code == 401, path
            header = {"Authorization": f"Bearer {server.token}"}
            assert server.get(path, headers=header).status_code == 200, path
        for path in ("/api/health", "/api/openapi.json"):
            assert server.get(path).status_code == 200


def test_every_answer_forbids_the_browser_what_pages_do_not_need(
    folder: Path, environ: dict[str, str]
) -> None:
    with served(folder, environ) as server:
        for path in ("/api/runs", "/api/nothing", "/api/runs?limit=x", "/metrics"):
            headers = server.get(path).headers
            assert "default-src 'none'" in headers["content-security-policy"], path
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "server" not in headers


def test_what_is_too_large_is_refused(live: RunDir, environ: dict[str, str]) -> None:
    def chunks() -> object:
        yield from (b"x" * 4096 for _ in range(2 * MOST_BODY_BYTES // 4096))

    with served(live.path.parent, environ) as server:
        path = "/api/runs/latest/control"
        large = server.with_token(path, {"request": "x" * MOST_BODY_BYTES})
        assert large.status_code == 413
        streamed = httpx.post(
            f"{server.url}{path}",
            content=chunks(),  # type: ignore[arg-type]
            headers={"Authorization": f"Bearer {server.token}"},
            trust_env=False,
        )
        assert streamed.status_code == 413
        assert server.get("/api/runs?search=" + "x" * MOST_URL_BYTES).status_code == 414
        assert server.raw(b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000).split()[1] == b"400"
        assert server.get("/api/runs").status_code == 200


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
