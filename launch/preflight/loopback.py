"""localhost: ranks find each other through it."""

from __future__ import annotations

import socket

from launch.preflight.ground import Ground, error, fine
from rundir.finding import Finding

NAME = "localhost"
_TIMEOUT_S = 1.0


def check(_ground: Ground) -> list[Finding]:
    """An error when the name means nothing, or no connection to it can be made."""
    return [find()]


def find() -> Finding:
    """The same of any run."""
    try:
        found = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
    except OSError as seen:
        do = "a line `127.0.0.1 localhost` in /etc/hosts"
        return error(NAME, f"the name localhost means nothing here: {seen}", do)
    refused = ""
    for family, _, _, _, address in found:
        try:
            _connect(family, (address[0], 0))
        except OSError as seen:
            refused = f"no connection to {address[0]} can be made: {seen}"
        else:
            return fine(NAME, f"{address[0]} answers")
    return error(NAME, refused, "ip link set lo up; and see `ulimit -n`, the firewall")


def _connect(family: int, address: tuple[object, int]) -> None:
    """Listen at a free port of `address`, and connect to it. Raises OSError."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen(1)
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(_TIMEOUT_S)
            client.connect(server.getsockname())
