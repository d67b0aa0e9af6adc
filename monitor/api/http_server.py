"""The server: its socket, what it says when it starts, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable

import uvicorn

from monitor.api.app import create_app
from monitor.api.server_settings import ServerSettings
from monitor.metrics.hub import Hub
from rundir.errors import ExitCode, UserError

_NUM_PORTS = 20  # that are tried where none was named
_MOST_FILES = 65_536
_MOST_CONNECTIONS = 4096
_REST_S = 0.15
_END_S = 2  # that open streams have when the server ends
_NICENESS = 10  # training comes first


def bound(host: str, port: int, *, is_named: bool) -> socket.socket:
    """Return a socket that listens on `port`, or on the next free one if none was named.

    Raises UserError, with who has the port.
    """
    ports = [port] if is_named or port == 0 else range(port, min(port + _NUM_PORTS, 65_536))
    for candidate in ports:
        try:
            return _socket(host, candidate)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _cannot_listen(host, candidate, error) from error
    text = f"port {port} of {host} is taken" + _by_whom(port)
    if not is_named:
        text = f"ports {port} to {ports[-1]} of {host} are all taken"
    raise UserError(text, do="./airlock serve --port 0   # any free one", code=ExitCode.PREFLIGHT)


def _socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at once, so that a taken port is known here."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    both = family == socket.AF_INET6  # "::" is reached by IPv4, too
    return socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=both)


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        do = "ip -brief address   # this machine's addresses; 127.0.0.1 is the default"
    elif error.errno == errno.EACCES:
        do = "./airlock serve --port 8080   # ports below 1024 are root's"
    else:
        do = "./airlock serve --host 127.0.0.1 --port 8080"
    return UserError(
        f"cannot listen on {host} port {port}: {error.strerror}",
        do=do,
        code=ExitCode.PREFLIGHT,
    )


def _by_whom(port: int) -> str:
    """Return who has a port, as far as that can be seen by this user."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status != psutil.CONN_LISTEN
                or not connection.laddr
                or not connection.pid
            ):
                continue
            if connection.laddr.port == port:
                command = " ".join(psutil.Process(connection.pid).cmdline())[:100]
                return f", by process {connection.pid}: {command}"
    return ", by a process of another user"


def serve(settings: ServerSettings, listening: socket.socket, say: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; `say` is called once requests are answered."""
    _prepare()
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
    )
    _Server(config, say, settings.parent, app.state.hub).run(sockets=[listening])


def _prepare() -> None:
    """Make this process yield to training, and take what 1,000 connections need."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    logging.basicConfig(format="airlock: %(message)s", level=logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_no_end)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn takes signals while it runs, and raises them again once it has ended: both are
        # the usual end here, with exit code 0.
        signal.signal(number, lambda *_: None)


def _is_no_end(record: logging.LogRecord) -> bool:
    """Return whether a line tells of more than streams that the end of the server has cut off."""
    return "timeout graceful shutdown" not in record.getMessage()


class _Server(uvicorn.Server):
    """Says where it is to be found once it answers, and lets nobody wait for its end."""

    def __init__(
        self, config: uvicorn.Config, say: Callable[[], None], parent: int | None, hub: Hub
    ) -> None:
        super().__init__(config)
        self._say, self._parent, self._hub = say, parent, hub

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._say()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams at once: uvicorn waits for answers that have begun."""
        self._hub.close()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end; four times a second.

        uvicorn waits 0.1 s between two looks, and they would cost more than a stream does.
        """
        await asyncio.sleep(_REST_S)
        is_alone = self._parent is not None and os.getppid() != self._parent
        return is_alone or await super().on_tick(counter)
