"""What `airlock serve` was started with; its token, made once and kept for its user alone."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rundir.atomic import write_text
from rundir.errors import ExitCode, UserError
from rundir.paths import cache_folder

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{16,256}")  # what needs no escape in a URL or a header


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


def token_file() -> Path:
    """Return where the token is kept."""
    return cache_folder() / "monitor" / "token"


def token_of(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the token and where it is from. Raises UserError."""
    named = environ.get("AIRLOCK_TOKEN", "")
    if named:
        if not _TOKEN.fullmatch(named):
            raise UserError(
                f"AIRLOCK_TOKEN has {len(named)} characters; it needs 16 to 256 of A-Z a-z 0-9 "
                "_ . ~ -",
                do='export AIRLOCK_TOKEN="$(openssl rand -hex 16)"',
            )
        return named, "AIRLOCK_TOKEN"
    path = token_file()
    kept = _kept(path)
    if kept is None:
        kept = secrets.token_urlsafe(24)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, kept)
        except OSError as error:
            raise UserError(
                f"the token cannot be kept in {path}: {error.strerror}",
                do="AIRLOCK_CACHE_DIR=/elsewhere, or AIRLOCK_TOKEN=…",
                code=ExitCode.PREFLIGHT,
            ) from error
    return kept, str(path)


def _kept(path: Path) -> str | None:
    """Return the token in the file; None if nobody but its user may have read or written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        is_private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
        if not is_private or status.st_uid != os.getuid():
            return None
        text = file.read(1024).decode("ascii", errors="replace").strip()
    return text if _TOKEN.fullmatch(text) else None


def _write(path: Path, token: str) -> None:
    mask = os.umask(0o077)  # before any thread: a umask is the whole process's
    try:
        write_text(path, token + "\n", durable=False)
    finally:
        os.umask(mask)
