"""What `airlock serve` was started with."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one server."""

    runs_folder: Path
    host: str = "127.0.0.1"
    port: int = 8080
    allow_hosts: tuple[str, ...] = ()  # names that a Host header may have, besides
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    is_private: bool = False  # reading needs the token as well
    inbox: Path | None = None
    with_pages: bool = True
    run: str = ""  # that is shown first
    parent: int | None = None  # the process with which the server ends

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in LOOPBACK

    @property
    def reading_needs_token(self) -> bool:
        """Whether GET needs the token: always, where others can reach the server."""
        return self.is_private or not self.is_loopback
