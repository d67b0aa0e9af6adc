"""uv, which makes `.venv`: finding or fetching it, giving it pip's settings, running it.

Standard library only, and no syntax newer than Python 3.8's: it runs before anything is installed.
"""

from __future__ import annotations

import ast
import math
import os
import re
import shutil
import subprocess
import sys
from functools import partial
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
# The user's own settings for pip apply, except those that would install elsewhere or prompt.
_PIP = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_NO_INPUT": "1"}


class CommandError(Exception):
    """A command has failed; the text is all that it printed."""


def on_path() -> str | None:
    """Return the uv on PATH, if it is new enough."""
    # Or where its installer puts it, which is on PATH in new shells only.
    uv = shutil.which("uv", path=f"{os.environ.get('PATH', '')}:{Path.home()}/.local/bin")
    if uv is None:
        return None
    version = subprocess.run([uv, "--version"], stdout=subprocess.PIPE, check=False).stdout.decode()
    numbers = re.match(r"uv (\d+)\.(\d+)", version)
    return uv if numbers and tuple(map(int, numbers.groups())) >= _OLDEST else None


def fetched(folder: Path, log: BinaryIO) -> str:
    """Return a uv of our own in `folder`, by the pip of this Python or of a new environment.

    Raises CommandError if this Python has neither pip nor venv, or pip cannot get it.
    """
    env, where = {**os.environ, **_PIP}, ["--target", str(folder)]
    pip = [sys.executable, "-I", "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        run([sys.executable, "-I", "-m", "venv", str(folder)], env, log)
        pip, where = [str(folder / "bin/python"), "-I", "-m", "pip"], []
    run([*pip, "install", "--upgrade", *where, WHEEL], env, log)
    return str(folder / "bin/uv")


def settings_of_pip() -> tuple[dict[str, str], list[str]]:
    """Return the environment and options with which uv looks for packages where pip would.

    uv itself reads none of pip's settings. Settings for uv in the environment win.
    """
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]  # prints nothing without pip
    listing = subprocess.run(command, capture_output=True, check=False).stdout.decode()
    settings = {}
    for section, name, value in re.findall(r"^(\w+)\.(.+?)=(.*)", listing, re.MULTILINE):
        if section in ("global", "install"):  # listed in this order, and the later one wins
            settings[name] = ast.literal_eval(value)
    for variable, value in os.environ.items():
        if variable.startswith("PIP_"):
            settings[variable[4:].lower().replace("_", "-")] = value
    # Without this strategy, uv looks for a package only in the first index that has it at all.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for pip, uv in _UV_NAMES.items():
        if settings.get(pip):
            separator = "," if pip == "find-links" else " "
            variables[uv] = separator.join(settings[pip].split())
    if "UV_HTTP_TIMEOUT" in variables:  # in whole seconds
        variables["UV_HTTP_TIMEOUT"] = str(math.ceil(float(variables["UV_HTTP_TIMEOUT"])))
    for old, new in (("UV_INDEX_URL", "UV_DEFAULT_INDEX"), ("UV_EXTRA_INDEX_URL", "UV_INDEX")):
        if old in os.environ:
            variables.pop(new, None)
    options = ["--no-index"] if settings.get("no-index") in ("1", "true", "yes", "on") else []
    return {**variables, **os.environ}, options


def run(command: list[str], env: dict[str, str], log: BinaryIO | None) -> str:
    """Run `command`, which does not outlive this process; return its output, also sent to `log`.

    Without a log it goes to the screen instead, on a terminal with uv's own progress bars. Raises
    CommandError if the command fails.
    """
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if log is None else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        preexec_fn=partial(die_with_parent, os.getpid()),
        check=False,
    )
    output = ended.stdout or b""
    if log is not None:
        log.write(output)
    if ended.returncode:
        raise CommandError(output.decode(errors="replace"))
    return output.decode(errors="replace")
