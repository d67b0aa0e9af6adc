"""uv, which makes `.venv`: finding or fetching it, giving it pip's settings, running it.

Standard library only, and no syntax newer than Python 3.8's: it runs before anything is installed.
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

from machine.processes.parent import die_with_parent

WHEEL = "uv==0.13.9"  # fetched if there is no uv on PATH that is new enough
_OLDEST = (0, 8)

# Settings of pip, with uv's name for each.
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

# The user's own settings for pip apply, except those that would install elsewhere or prompt.
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
    """A command has failed; `output` is all that it printed."""

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output


def on_path() -> str | None:
    """Return the uv on PATH, if it is new enough."""
    # Or where its installer puts it, which is on PATH in new shells only.
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path("~/.local/bin").expanduser()))
    if uv is None:
        return None
    version = subprocess.run([uv, "--version"], stdout=subprocess.PIPE, check=False).stdout.decode()
    numbers = re.match(r"uv (\d+)\.(\d+)", version)
    return uv if numbers and tuple(map(int, numbers.groups())) >= _OLDEST else None


def fetched(folder: Path, log: BinaryIO) -> str | None:
    """Return a uv of our own in `folder`, by the pip of this Python or of a new environment.

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
        output = run([*pip, "install", "--upgrade", *where, WHEEL], log, {**os.environ, **_PIP})
        if not uv.exists():
            raise CommandError(output)
    return str(uv)


def settings_of_pip() -> tuple[dict[str, str], list[str]]:
    """Return the environment and options with which uv looks for packages where pip would.

    uv itself reads none of pip's settings. Settings for uv in the environment win.
    """
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, check=False)
    if listing.returncode:  # no pip here, so there are no files of settings either
        lines = [
            f":env:.{name[4:].lower().replace('_', '-')}={value!r}"
            for name, value in os.environ.items()
            if name.startswith("PIP_")
        ]
    else:
        lines = listing.stdout.decode().splitlines()
    settings = {}
    for section in _SECTIONS:
        for key, _, value in (line.partition("=") for line in lines):
            if key.startswith(f"{section}."):
                settings[key[len(section) + 1 :]] = " ".join(str(ast.literal_eval(value)).split())
    # Without this strategy, uv looks for a package only in the first index that has it at all.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    variables.update({uv: settings[pip] for pip, uv in _UV_NAMES.items() if settings.get(pip)})
    if "UV_FIND_LINKS" in variables:  # the one list that is not separated by spaces
        variables["UV_FIND_LINKS"] = variables["UV_FIND_LINKS"].replace(" ", ",")
    if "UV_HTTP_TIMEOUT" in variables:  # in whole seconds
        variables["UV_HTTP_TIMEOUT"] = str(math.ceil(float(variables["UV_HTTP_TIMEOUT"])))
    for old, new in (("UV_INDEX_URL", "UV_DEFAULT_INDEX"), ("UV_EXTRA_INDEX_URL", "UV_INDEX")):
        if old in os.environ:
            variables.pop(new, None)
    options = ["--no-index"] if settings.get("no-index") in ("1", "true", "yes", "on") else []
    return {**variables, **os.environ}, options


def run(command: list[str], log: BinaryIO, env: dict[str, str], *, shown: bool = False) -> str:
    """Run `command`, which does not outlive this process; return its output, also sent to `log`.

    If `shown`, the output is on the screen as well, on a terminal with uv's own progress bars.

    Raises:
        CommandError: it ended with an error.
    """
    ours, theirs = pty.openpty() if shown and sys.stderr.isatty() else os.pipe()
    if os.isatty(theirs):
        size = fcntl.ioctl(sys.stderr, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        tty.setraw(theirs)  # the real terminal ends the lines
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
        except BaseException:  # an interruption or a full disk: the command goes first
            process.kill()
            raise
    os.close(ours)
    if process.returncode:
        raise CommandError(output.decode(errors="replace"))
    return output.decode(errors="replace")


def _read(descriptor: int) -> bytes:
    """Return the next bytes, or none at the end, which is an error on a terminal."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
