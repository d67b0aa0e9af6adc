"""The answers of the API about one run, asked for within this process: no port is opened."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from starlette.types import ASGIApp, Message

from monitor.http.api_errors import ApiError

Answers = dict[str, Any]
_POINTS = 1000  # of each series
_LEAST_POINTS = 250
_LINES = 1000  # the last of each log
_EVENTS = 200
_PAGE = 1000
_INDEXING_S = 120.0  # at most, for a long run that nobody has looked at


class Asker:
    """Asks an app, in this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def get(self, url: str) -> Any:
        """Return the JSON of `api/…`. Raises ApiError for an answer that is none."""
        return asyncio.run(self._get(url))

    async def _get(self, url: str) -> Any:
        split = urlsplit("/" + url)
        parts: list[bytes] = []
        status = 0

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(split.path),
            "raw_path": split.path.encode(),
            "query_string": split.query.encode(),
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1")],
            "server": ("127.0.0.1", 80),
            "client": None,
            "state": {},
        }
        await self._app(scope, receive, send)
        content = json.loads(b"".join(parts) or b"null")
        if status != 200:  # noqa: PLR2004 - OK
            answer = content if isinstance(content, dict) else {}
            error = ApiError(answer.get("error", f"status {status}"), answer.get("hint", ""))
            error.status = status
            raise error
        return content


def answers_of(asker: Asker, run: str, series: Sequence[str]) -> Answers:
    """Return what the pages of `run` ask for, by path or by path and query. Raises ApiError."""
    here = f"api/runs/{quote(run, safe='')}"
    answers = {f"{here}/{name}": asker.get(f"{here}/{name}") for name in ("status", "config")}
    answers[f"{here}/incidents"] = asker.get(f"{here}/incidents")
    answers[f"{here}/metrics"] = _metrics(asker, here, series)
    answers |= _events(asker, here)
    answers |= _logs(asker, here)
    answers |= _evolution(asker, run)
    return answers


def _metrics(asker: Asker, here: str, series: Sequence[str]) -> Any:
    names = ",".join(quote(name) for name in series)
    until = time.monotonic() + _INDEXING_S
    points = _POINTS
    while True:
        try:
            curves = asker.get(f"{here}/metrics?series={names}&points={points}")
        except ApiError as error:
            if error.status != 400 or points <= _LEAST_POINTS:  # noqa: PLR2004 - too many values
                raise
            points = _LEAST_POINTS  # hundreds of ranks
            continue
        if curves["indexed"].get("done", True) or time.monotonic() > until:
            return curves
        time.sleep(0.5)


def _events(asker: Asker, here: str) -> Answers:
    asked = [f"last={_EVENTS}&kind={kind}" for kind in ("mark", "error")]
    starts = ("prepare", "zygote.import", "zygote.build", "mem.post_model")
    asked += [f"name={name}&limit=6" for name in starts]
    return {f"{here}/events?{query}": asker.get(f"{here}/events?{query}") for query in asked}


def _logs(asker: Asker, here: str) -> Answers:
    """Return the ends of the run's own log and of the ranks' last logs."""
    first = asker.get(f"{here}/logs?last={_LINES}")
    answers = {f"{here}/logs": first}
    names = list(dict.fromkeys(file["name"] for file in first["files"]))[:20]
    files = [{"name": name, "attempt": None} for name in names]
    for name in names:
        lines = asker.get(f"{here}/logs?file={quote(name)}&last={_LINES}")
        answers[f"{here}/logs?file={quote(name)}"] = lines | {"files": files}
    first["files"] = files
    return answers


def _evolution(asker: Asker, run: str) -> Answers:
    query = f"run={quote(run, safe='')}"
    datasets = asker.get(f"api/evolution/datasets?{query}")
    answers: Answers = {"api/evolution/datasets": datasets}
    for row in datasets["datasets"]:
        here = f"api/evolution/{quote(row['name'], safe='')}"
        snapshots = answers[f"{here}/snapshots"] = asker.get(f"{here}/snapshots?{query}")
        answers[f"{here}/examples"] = _examples(asker, here, query)
        for snapshot in snapshots["snapshots"]:
            if "error" not in snapshot:
                path = f"{here}/snapshot/{snapshot['step']}"
                answers[path] = asker.get(f"{path}?{query}")
    return answers


def _examples(asker: Asker, here: str, query: str) -> Any:
    """Return all examples at once; the page asks for them in pieces."""
    whole = asker.get(f"{here}/examples?{query}&limit={_PAGE}")
    while len(whole["examples"]) < whole["total"]:
        offset = len(whole["examples"])
        more = asker.get(f"{here}/examples?{query}&limit={_PAGE}&offset={offset}")["examples"]
        if not more:
            break
        whole["examples"] += more
    return whole
