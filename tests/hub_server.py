"""A small Hub on a real socket: models are fetched and uploaded, and it can misbehave.

Large files are redirected to another host name, as the real one redirects to its CDN.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_LARGE = (".safetensors", ".bin")
_CHUNK_BYTES = 256 * 1024


@dataclass
class Model:
    """The contents of a repository in its only commit, on the branch main."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False

    @property
    def commit(self) -> str:
        """The commit hash, which depends only on the content."""
        content = sorted((name, _sha256(data)) for name, data in self.files.items())
        return hashlib.sha1(repr(content).encode()).hexdigest()  # noqa: S324

    def listing(self) -> list[dict[str, Any]]:
        """Return its files as /tree lists them."""
        return [
            {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
            | (
                {
                    "lfs": {"oid": _sha256(data), "size": len(data), "pointerSize": 130},
                    "xetHash": _sha256(data),
                }
                if name.endswith(_LARGE)
                else {}
            )
            for name, data in self.files.items()
        ]


@dataclass
class Request:
    """A request that was answered; `sent_bytes` of a large file were sent."""

    method: str
    path: str
    range: str | None
    token: str | None
    sent_bytes: int = 0


@dataclass
class Hub:
    """The server's state; tests change it while it runs."""

    models: dict[str, Model]
    tokens: set[str] = field(default_factory=set)  # known; each may see private models
    let_in: set[str] = field(default_factory=set)  # those that may read gated models
    writers: set[str] = field(default_factory=set)  # those that may write
    blobs: dict[str, bytes] = field(default_factory=dict)  # uploaded large files, by SHA-256
    made: list[dict[str, Any]] = field(default_factory=list)  # what was asked of new repositories
    requests: list[Request] = field(default_factory=list)
    bytes_per_s: float = 0.0  # of each connection; 0: unlimited
    break_after_bytes: int = 0  # large files break off after this many, always or
    num_breaks: int = 0  # this many times
    status: int = 0  # the status of all responses, if set
    hangs: bool = False  # requests are accepted but not answered
    is_html: bool = False  # it is not a Hub at all
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def breaks_now(self, asked: Request) -> bool:
        """Return whether the response to this request breaks off; count it if so."""
        with self._lock:
            if not 0 < self.break_after_bytes <= asked.sent_bytes:
                return False
            self.num_breaks -= 1
            if self.num_breaks == 0:
                self.break_after_bytes = 0
            return True

    def large(self) -> list[Request]:
        """Return the requests for large files, in order of arrival."""
        return [one for one in self.requests if one.method == "GET" and "/cdn/" in one.path]

    def sent_bytes(self) -> int:
        """Return how many bytes of large files have been sent."""
        return sum(one.sent_bytes for one in self.large())


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve the hub at `hub.url`."""

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.hangs = False
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer like GET, without the content."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer a request."""
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        asked = Request(self.command, path, self.headers.get("Range"), token)
        self.state.requests.append(asked)
        while self.state.hangs:
            time.sleep(0.05)
        try:
            self._route(path, asked)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_PUT(self) -> None:
        """Take a large file."""
        self.do_POST()

    def do_POST(self) -> None:
        """Take a part of an upload."""
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.state.requests.append(Request(self.command, path, None, token))
        if self.state.status:
            self._answer(self.state.status, b"busy")
        elif path.startswith("/lfs/"):
            self.state.blobs[path.removeprefix("/lfs/")] = body
            self._answer(200, b"")
        elif token not in self.state.tokens:
            message = "Invalid credentials in Authorization header"
            self._refuse(401, {"X-Error-Message": message})
        elif path == "/api/validate-yaml":
            self._json({})
        elif token not in self.state.writers:
            self._refuse(403, {"X-Error-Message": "You don't have the rights to do this"})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            self.state.made.append(asked)
            name = f"{asked['organization']}/{asked['name']}"
            is_private = asked.get("private") or asked.get("visibility") == "private"
            self.state.models[name] = Model({}, private=bool(is_private))
            self._json({"url": f"{self.state.url}/{name}", "name": name})
        else:
            self._upload(path, body)

    def _upload(self, path: str, body: bytes) -> None:
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            modes = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(_LARGE) else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            self._json({"files": modes})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                one | {"actions": {"upload": {"href": f"{self.state.url}/lfs/{one['oid']}"}}}
                if one["oid"] not in self.state.blobs
                else one
                for one in json.loads(body)["objects"]
            ]
            self._json({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            model = self.state.models[found[1]]
            for line in body.splitlines():
                self._commit(model, **json.loads(line))
            url = f"{self.state.url}/{found[1]}/commit/{model.commit}"
            self._json({"commitUrl": url, "commitOid": model.commit})
        else:
            self._answer(404, b"")

    def _commit(self, model: Model, key: str, value: dict[str, Any]) -> None:
        if key == "file":
            model.files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            model.files[value["path"]] = self.state.blobs[value["oid"]]
        elif key == "deletedFile":
            del model.files[value["path"]]

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self._answer(200, body, {"Content-Type": "application/json"})

    def _route(self, path: str, asked: Request) -> None:
        if self.state.status:
            self._answer(self.state.status, b"busy")
        elif self.state.is_html:
            self._answer(200, b"<html>Sign in to the wireless network</html>")
        elif path.startswith("/cdn/"):
            self._large(path.removeprefix("/cdn/"), asked)
        elif found := re.fullmatch(
            r"/api/(?:models|(datasets))/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path
        ):
            name = f"datasets/{found[2]}" if found[1] else found[2]
            self._api(name, found[3], found[4] or "main", asked)
        elif found := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3], asked)
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _model(self, model_id: str, revision: str, asked: Request) -> Model | None:
        """Return the model if the client may know of it; otherwise send the refusal."""
        known = asked.token in self.state.tokens
        if asked.token is not None and not known:
            message = "Invalid credentials in Authorization header"
            self._refuse(401, {"X-Error-Message": message})
            return None
        model = self.state.models.get(model_id)
        if model is None or (model.private and not known):
            # As the real Hub does: an unknown client is not told which of the two it is.
            self._refuse(404 if known else 401, {"X-Error-Code": "RepoNotFound"})
            return None
        if revision not in ("main", model.commit):
            self._refuse(404, {"X-Error-Code": "RevisionNotFound"})
            return None
        return model

    def _refuse(self, status: int, headers: dict[str, str]) -> None:
        self._answer(status, b"", headers)

    def _api(self, model_id: str, what: str | None, revision: str, asked: Request) -> None:
        model = self._model(model_id, revision, asked)
        if model is None:
            return
        if what == "tree":
            answer: Any = model.listing()
        else:
            siblings = [
                {"rfilename": one["path"], "size": one["size"], "blobId": one["oid"]}
                | (
                    {"lfs": {"sha256": one["lfs"]["oid"], "size": one["size"], "pointerSize": 130}}
                    if "lfs" in one
                    else {}
                )
                for one in model.listing()
            ]
            answer = {
                "id": model_id,
                "modelId": model_id,
                "sha": model.commit,
                "private": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": siblings,
            }
        self._answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, model_id: str, revision: str, name: str, asked: Request) -> None:
        model = self._model(model_id, revision, asked)
        if model is None:
            return
        if model.gated and asked.token not in self.state.let_in:
            status = 401 if asked.token is None else 403
            self._refuse(status, {"X-Error-Code": "GatedRepo"})
            return
        headers = {"X-Repo-Commit": model.commit}
        data = model.files.get(name)
        if data is None:
            self._refuse(404, headers | {"X-Error-Code": "EntryNotFound"})
        elif name.endswith(_LARGE):
            port = urlsplit(self.state.url).port
            headers |= {
                "X-Linked-Etag": f'"{_sha256(data)}"',
                "X-Linked-Size": str(len(data)),
                "X-Xet-Hash": _sha256(data),
                "Location": f"http://localhost:{port}/cdn/{_sha256(data)}",
            }
            self._answer(302, b"", headers)
        else:
            self._answer(200, data, headers | {"ETag": f'"{_oid(data)}"'})

    def _large(self, sha256: str, asked: Request) -> None:
        contents = (data for model in self.state.models.values() for data in model.files.values())
        data = next(one for one in contents if _sha256(one) == sha256)
        begin = int((asked.range or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if asked.range else 200)
        self.send_header("Content-Length", str(len(data) - begin))
        self.send_header("ETag", f'"{sha256}"')
        if asked.range:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self._send(data, begin, asked)

    def _send(self, data: bytes, begin: int, asked: Request) -> None:
        for at in range(begin, len(data), _CHUNK_BYTES):
            if self.state.breaks_now(asked):
                self.close_connection = True
                return
            chunk = data[at : at + _CHUNK_BYTES]
            self.wfile.write(chunk)
            asked.sent_bytes += len(chunk)
            if self.state.bytes_per_s:
                time.sleep(len(chunk) / self.state.bytes_per_s)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@cache
def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def _oid(data: bytes) -> str:
    """Return the hash of `data` as a git blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324
