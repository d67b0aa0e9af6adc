"""uv, which makes `.venv`: where it comes from, what it is told of pip's settings, how it is run.

Standard library only, and no syntax newer than Python 3.8's: it runs before there is anything else.
"""

from __future__ import annotations

import ast
import fcntl
import math
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import tty
from pathlib import Path
from typing import BinaryIO

from launch.process.parent import die_with_parent

WHEEL = "uv==0.13.9"  # fetched where no uv is on PATH that is new enough
_OLDEST = (0, 8)

# What pip is set to, by the name that uv has for it.
_UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
_SECTIONS = ("global", "install", ":env:")  # a later one wins, as with pip

# A user's own settings for pip hold, but for those that would install elsewhere or ask.
_PIP = {
    "PIP_USER": "0",
    "PIP_REQUIRE_VIRTUALENV": "0",
    "PIP_NO_INPUT": "1",
    "PIP_DRY_RUN": "",
    "PIP_TARGET": "",
    "PIP_PREFIX": "",
    "PIP_ROOT": "",
}


class CommandError(Exception):
    """A command has ended with an error; `output` is all that it has said."""

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output


def on_path() -> str | None:
    """The uv on PATH, if it is new enough."""
    # Or where its installer puts it, which is on PATH in new shells only.
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path("~/.local/bin").expanduser()))
    if uv is None:
        return None
    told = subprocess.run([uv, "--version"], stdout=subprocess.PIPE, check=False).stdout.decode()
    found = re.match(r"uv (\d+)\.(\d+)", told)
    return uv if found and tuple(map(int, found.groups())) >= _OLDEST else None


def fetched(folder: Path, log: BinaryIO) -> str | None:
    """A uv of our own in `folder`, by the pip of this Python, or else of an environment of its own.

    Returns None if this Python has neither pip nor what makes an environment with one.

    Raises:
        CommandError: pip could not get it.
    """
    uv, python = folder / "bin/uv", [sys.executable, "-I"]
    if not uv.exists():
        pip, where = [*python, "-m", "pip"], ["--target", str(folder)]
        if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
            try:
                run([*python, "-m", "venv", str(folder)], log, dict(os.environ))
            except CommandError:
                return None
            pip, where = [str(folder / "bin/python"), "-I", "-m", "pip"], []
        said = run([*pip, "install", "--upgrade", *where, WHEEL], log, {**os.environ, **_PIP})
        if not uv.exists():
            raise CommandError(said)
    return str(uv)


def settings_of_pip() -> tuple[dict[str, str], list[str]]:
    """The environment, and options, with which uv looks for packages where pip would.

    uv itself reads no setting of pip's. What is set for uv in the environment wins.
    """
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    told = subprocess.run(command, capture_output=True, check=False)
    if told.returncode:  # no pip here, so there are no files of settings either
        lines = [
            f":env:.{name[4:].lower().replace('_', '-')}={value!r}"
            for name, value in os.environ.items()
            if name.startswith("PIP_")
        ]
    else:
        lines = told.stdout.decode().splitlines()
    settings = {}
    for section in _SECTIONS:
        for key, _, value in (line.partition("=") for line in lines):
            if key.startswith(f"{section}."):
                settings[key[len(section) + 1 :]] = " ".join(str(ast.literal_eval(value)).split())
    # Without that strategy, a package that a first index has at all is looked for in no other.
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    found.update({uv: settings[pip] for pip, uv in _UV_NAMES.items() if settings.get(pip)})
    if "UV_FIND_LINKS" in found:  # the one list that is not separated by spaces
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    if "UV_HTTP_TIMEOUT" in found:  # of whole seconds
        found["UV_HTTP_TIMEOUT"] = str(math.ceil(float(found["UV_HTTP_TIMEOUT"])))
    for old, new in (("UV_INDEX_URL", "UV_DEFAULT_INDEX"), ("UV_EXTRA_INDEX_URL", "UV_INDEX")):
        if old in os.environ:
            found.pop(new, None)
    options = ["--no-index"] if settings.get("no-index") in ("1", "true", "yes", "on") else []
    return {**found, **os.environ}, options


def run(command: list[str], log: BinaryIO, env: dict[str, str], *, shown: bool = False) -> str:
    """Run `command`, which does not outlive this process; returns its output, which `log` gets too.

    Where it is `shown` it is on the screen as well, and at a terminal with uv's own progress bars.

    Raises:
        CommandError: it ended with an error.
    """
    ours, theirs = pty.openpty() if shown and sys.stderr.isatty() else os.pipe()
    if os.isatty(theirs):
        size = fcntl.ioctl(sys.stderr, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        tty.setraw(theirs)  # lines are ended by the real one
    own_pid, output = os.getpid(), b""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=env,
        preexec_fn=lambda: die_with_parent(own_pid),  # noqa: PLW1509 - no threads here
    ) as process:
        os.close(theirs)
        try:
            while data := _read(ours):
                output += data
                log.write(data)
                if shown:
                    sys.stderr.buffer.write(data)
                    sys.stderr.flush()
        except BaseException:  # an interruption, a full disk: it goes first
            process.kill()
            raise
    os.close(ours)
    if process.returncode:
        raise CommandError(output.decode(errors="replace"))
    return output.decode(errors="replace")


def _read(descriptor: int) -> bytes:
    """What comes next; nothing at its end, which of a terminal is an error."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
