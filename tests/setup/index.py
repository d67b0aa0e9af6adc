"""A package index on this machine, and a uv that is installed from it."""

import contextlib
import http.server
import threading
import zipfile
from pathlib import Path

from setup import uv
from tests.clone import UV, Clone, make_wheel


class Index:
    """A package index on this machine that keeps requests for `holds` waiting.

    It serves each file below `folder`, and a wheel's metadata at NAME.whl.metadata.
    """

    def __init__(self, folder: Path, holds: str) -> None:
        self.holds = holds
        self.was_asked = threading.Event()
        self.may_answer = threading.Event()
        self.torn = False  # if true, it sends half of what it holds and closes the connection
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2]
                if name.endswith(index.holds):
                    index.was_asked.set()
                    index.may_answer.wait(60)
                if not name:
                    body = index.page(folder, self.path.split("/")[-2])
                elif name.endswith(".metadata"):
                    body = metadata(folder / name.removesuffix(".metadata"))
                else:
                    body = (folder / name).read_bytes()
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if index.torn and name.endswith(index.holds):
                    body = body[: len(body) // 2]
                with contextlib.suppress(OSError):  # the client may have been killed meanwhile
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def page(folder: Path, package: str) -> bytes:
        """Return the page of a package: a link to each of its wheels."""
        names = [wheel.name for wheel in folder.glob(f"{package.replace('-', '_')}-*.whl")]
        links = (f'<a href="/{name}" data-core-metadata="true">{name}</a>' for name in names)
        return "".join(links).encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple"

    def close(self) -> None:
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()


def metadata(wheel: Path) -> bytes:
    """Return the metadata of a wheel, which an index may serve separately."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if "METADATA" in name))


def stub_uv(clone: Clone) -> Path:
    """Make a wheel of uv from which pip installs a link to the real one; remove uv from PATH."""
    (clone.bin / "uv").unlink()
    version = uv.WHEEL.partition("==")[2]
    wheel = clone.root.parent / f"wheels/uv-{version}-py3-none-any.whl"
    return make_wheel(wheel, script=f'#!/bin/sh\nexec "{UV}" "$@"\n')
