"""The stream of changes, over real connections to a real server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from monitor.api.app import create_app
from monitor.api.server_settings import ServerSettings
from monitor.http.json_api import TooManyError
from monitor.metrics import follower
from monitor.metrics import hub as hub_module
from monitor.metrics.follower import RunFollower, RunsFollower
from monitor.metrics.hub import Hub, Listener
from monitor.metrics.stream_messages import Message, message
from monitor.runs.run_list import Runs
from tests.monitor import serving
from tests.monitor.metrics.event_files import WrittenRun
from tests.running import wait_for

Told = tuple[str, Any, str]  # kind, content, id
_NUMBERS = itertools.count()


class Served:
    """A server of one folder of runs, in a thread."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder
        self.app: Starlette = create_app(ServerSettings(runs_folder=folder, with_pages=False))
        config = uvicorn.Config(
            self.app, port=0, log_level="error", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def start(self) -> None:
        self._thread.start()
        wait_for(lambda: self._server.started, why="it does not start")
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    @contextlib.contextmanager
    def stream(self, path: str, last_id: str = "") -> Iterator[Iterator[Told]]:
        """Yield what a stream tells, pings and what a browser does with them left out."""
        headers = {"Last-Event-ID": last_id} if last_id else {}
        with (
            httpx.Client(timeout=20, trust_env=False) as client,
            client.stream("GET", f"{self.url}{path}", headers=headers) as response,
        ):
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _told(response.iter_lines())

    def followed(self) -> int:
        hub: Hub = self.app.state.hub
        return len(hub._followed)

    def until_nobody_follows(self) -> None:
        wait_for(lambda: self.followed() == 0, why="a follower stays")


def _told(lines: Iterator[str]) -> Iterator[Told]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields and fields["event"] != "ping":
                yield fields["event"], json.loads(fields["data"]), fields.get("id", "")
            fields = {}


def next_of(stream: Iterator[Told], kind: str) -> Told:
    """Return the next message of a kind."""
    return next(one for one in stream if one[0] == kind)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests, which looks for what is new as often as it can."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRLOCK_CACHE_DIR", str(folder / "cache"))
        patch.setattr(follower, "_FILES_S", 0.0)
        patch.setattr(RunFollower, "interval_s", 0.01)
        patch.setattr(RunsFollower, "interval_s", 0.01)
        served = Served(folder / "runs")
        served.start()
        yield served
        served.stop()


@pytest.fixture
def written(served: Served) -> Iterator[WrittenRun]:
    """The only run that is served, of another name in each test."""
    written = WrittenRun(served.runs, f"20260101-000000-tiny-{next(_NUMBERS):04x}")
    yield written
    shutil.rmtree(written.run.path, ignore_errors=True)
    served.until_nobody_follows()


@pytest.fixture
def path(written: WrittenRun) -> str:
    return f"/api/runs/{written.run.run_id}/stream"


def test_what_is_written_is_told_by_kind(served: Served, written: WrittenRun, path: str) -> None:
    written.train(1, loss=1.0)
    with served.stream(path) as told:
        kind, row, first_id = next(told)
        assert (kind, row["id"]) == ("status", written.run.run_id)
        assert first_id
        written.train(2, loss=float("nan"))
        _, metric, _ = next_of(told, "metric")
        assert (metric["name"], metric["key"], metric["step"]) == ("train", None, 2)
        assert metric["fields"]["loss"] == "nan"
        written.writer("launch").emit("error", "rank.gone", failed_rank=3)
        assert next_of(told, "event")[1]["failed_rank"] == 3
        written.run.run_log.write_text("a line\nand a half")
        assert next_of(told, "log")[1] == {"file": "run", "n": 1, "text": "a line"}
        answers = written.run.evolution("demo", 10)
        answers.parent.mkdir(parents=True)
        answers.write_text("{}")
        assert next_of(told, "answers")[1] == {"dataset": "demo", "step": 10}
        written.run.status.write_text('{"step": 77, "phase": "training"}')
        assert next_of(told, "status")[1]["step"] == 77


def test_secrets_are_masked(served: Served, written: WrittenRun, path: str) -> None:
    secret = "hf_" + "Abcdefgh12345678" * 2
    with served.stream(path) as told:
        next(told)
        written.run.run_log.write_text(f"token: {secret}\n{'x' * 4090} {secret}\n")
        written.writer("rank0").emit(
            "error", "rank.exception", exception="E", message=secret, traceback="", exit_code=1
        )
        found = [next_of(told, kind) for kind in ("log", "log", "event")]
        assert "hf_A" not in json.dumps(found)


def test_a_torn_line_is_told_of_when_it_is_whole(
    served: Served, written: WrittenRun, path: str
) -> None:
    with served.stream(path) as told:
        next(told)
        written.raw(b'{"kind": "metric", "name": "train", "st')
        written.writer("launch").emit("error", "rank.gone", failed_rank=3)
        assert next_of(told, "event")
        written.raw(b'ep": 5, "loss": 1.5}\n{"broken\n[]\n')
        written.train(6, loss=1.0)
        assert [next_of(told, "metric")[1]["step"] for _ in range(2)] == [5, 6]


def test_who_comes_back_misses_nothing_and_hears_nothing_twice(
    served: Served, written: WrittenRun, path: str
) -> None:
    steps: list[int] = []
    last_id = ""
    for begin in range(0, 60, 10):
        with served.stream(path, last_id) as told:
            last_id = last_id or next(told)[2]
            for step in range(begin, begin + 10):
                written.train(step, loss=1.0)
            for _ in range(7):  # and the rest is on its way when the connection ends
                _, metric, last_id = next_of(told, "metric")
                steps.append(metric["step"])
        if begin == 20:
            served.until_nobody_follows()
    assert steps == list(range(42))


def test_a_place_that_is_too_far_back_or_of_another_run_says_so(
    served: Served, written: WrittenRun, path: str
) -> None:
    with served.stream(path) as told:
        first_id = next(told)[2]
    written.many(1, 4000)
    for last_id in (first_id, "what~is=this", "x", first_id.replace("=0", "=999999999")):
        with served.stream(path, last_id) as told:
            next_of(told, "reset")
            written.train(4001, loss=1.0)
            assert next_of(told, "metric")[1]["step"] == 4001


def test_logs_of_ranks_are_for_those_who_ask(
    served: Served, written: WrittenRun, path: str
) -> None:
    log = written.run.rank_log(1, 0)
    log.parent.mkdir(parents=True)
    log.write_text("old\n")
    with served.stream(path) as plain, served.stream(f"{path}?logs=run,rank1") as asked:
        next(plain)
        next(asked)
        with log.open("a") as file:
            file.write("new\n")
        assert next_of(asked, "log")[1] == {"file": "rank1", "n": 2, "text": "new"}
        written.run.run_log.write_text("of the run\n")
        assert next_of(plain, "log")[1]["file"] == "run"


def test_one_follower_is_there_for_all_and_ends_with_the_last(
    served: Served, written: WrittenRun, path: str
) -> None:
    with served.stream(path) as one:
        next(one)
        with served.stream(path) as other:
            next(other)
            assert served.followed() == 1
            written.train(1, loss=1.0)
            assert next_of(one, "metric")[1]["step"] == next_of(other, "metric")[1]["step"] == 1
        written.train(2, loss=1.0)
        assert next_of(one, "metric")[1]["step"] == 2
    served.until_nobody_follows()


def test_one_that_reads_nothing_does_not_hold_up_the_others(
    served: Served, written: WrittenRun, path: str
) -> None:
    slow = socket.create_connection(("127.0.0.1", served.port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
    with served.stream(path) as told:
        next(told)
        for first in range(1, 1000, 100):  # 4 MB in all, more than waits for one of them
            with written.run.run_log.open("a") as log:
                log.writelines("x" * 4000 + "\n" for _ in range(100))
            while next_of(told, "log")[1]["n"] < first + 99:
                pass
    slow.close()
    served.until_nobody_follows()


def test_what_is_not_taken_is_dropped_and_said() -> None:
    async def listen() -> bytes:
        listener = Listener(frozenset())
        for number in range(600):
            listener.put([message("metric", {"pad": "x" * 4096, "step": number})])
            listener.put([Message(b"of a log", "run")])
        taken = b""
        while b'"step": 599}' not in taken:
            taken += await listener.take(1)
        return taken

    taken = asyncio.run(listen())
    assert taken.startswith(b"event: reset")
    assert taken.endswith(b'"step": 599}\n\n')
    assert b"of a log" not in taken
    assert len(taken) < 2 << 20


def test_more_at_once_than_can_be_told_is_left_out_and_said(
    served: Served, written: WrittenRun, path: str
) -> None:
    with served.stream(path) as told:
        next(told)
        with written.run.run_log.open("w") as log:
            log.write("x" * 999 + "\n")
        next_of(told, "log")
        with written.run.run_log.open("a") as log:
            log.write(("x" * 999 + "\n") * 1000 + "the last\n")
        next_of(told, "reset")
        while next_of(told, "log")[1]["text"] != "the last":
            pass


def test_a_run_that_is_deleted_ends_its_streams(
    served: Served, written: WrittenRun, path: str
) -> None:
    with served.stream(path) as told:
        next(told)
        shutil.rmtree(written.run.path)
        assert next_of(told, "gone")
        assert list(told) == []
    served.until_nobody_follows()
    assert httpx.get(f"{served.url}{path}", trust_env=False).status_code == 404


def test_the_rows_of_all_runs_are_told_as_they_change(served: Served, written: WrittenRun) -> None:
    with served.stream("/api/stream") as told:
        _, first, _ = next(told)
        assert [row["id"] for row in first["runs"]] == [written.run.run_id]
        written.run.status.write_text('{"step": 5, "phase": "training"}')
        _, changed, _ = next_of(told, "runs")
        assert [row["step"] for row in changed["runs"]] == [5]
        other = WrittenRun(served.runs, "20260102-000000-other-1111")
        _, new, _ = next_of(told, "runs")
        assert ([row["id"] for row in new["runs"]], new["total"]) == ([other.run.run_id], 2)
        shutil.rmtree(other.run.path)
        _, less, _ = next_of(told, "runs")
        assert (less["removed"], less["total"]) == ([other.run.run_id], 1)


def test_there_is_a_limit_to_how_many_runs_are_followed(
    written: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "MOST_FOLLOWED", 1)

    async def listen() -> None:
        hub, runs = Hub(), Runs(written.run.path.parent)

        def make() -> RunFollower:
            return RunFollower(runs, written.run)

        listeners = [Listener(frozenset()) for _ in range(3)]
        for listener in listeners[:2]:
            await hub.listen("run", make, listener, "")
        with pytest.raises(TooManyError):
            await hub.listen("other", make, listeners[2], "")
        hub.leave("run", listeners[0])
        hub.leave("run", listeners[0])  # has left already
        assert len(hub._followed) == 1
        hub.leave("run", listeners[1])
        assert len(hub._followed) == 0
        while len(asyncio.all_tasks()) > 1:  # the run is not looked at any more
            await asyncio.sleep(0)

    asyncio.run(listen())


def test_metrics_are_served_with_the_same_names(
    served: Served, written: WrittenRun, path: str
) -> None:
    written.many(1, 10)
    url = f"{served.url}{path.replace('stream', 'metrics')}"
    told = httpx.get(f"{url}?series=train.loss&from_step=3&points=4", trust_env=False).json()
    assert told["series"]["train.loss"]["steps"] == [4, 6, 8, 10]
    assert told["series"]["train.loss"]["min"] == [3.0, 5.0, 7.0, 9.0]
    for wrong in ("points=0", "points=x", "from_step=nan", "series=nothing", "after=x"):
        answer = httpx.get(f"{url}?{wrong}", trust_env=False)
        assert answer.status_code == 400, wrong
        assert answer.json()["hint"]


def test_a_server_with_an_open_stream_ends_without_a_word(
    served: Served, path: str, environ: dict[str, str]
) -> None:
    with contextlib.ExitStack() as stack, serving.served(served.runs, environ) as server:
        address = ("127.0.0.1", server.port)
        reader = stack.enter_context(socket.create_connection(address))
        reader.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        while b"event: status" not in reader.recv(65536):
            pass
