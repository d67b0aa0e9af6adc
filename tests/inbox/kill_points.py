"""Kills a daemon at a named point: before or after a change that it makes to the disk.

A point is `MODULE.FUNCTION:CHANGE:before|after` of the inbox's own code, such as
`claim._name:rename:before`. `environment` puts it into a process; the product's code knows nothing
of it.

    AIRLOCK_KIT_KILL_AT=claim._name:rename:before   kill there, the first time
    AIRLOCK_KIT_POINTS=FILE                         append each point that is passed to FILE
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = ("rename", "replace", "mkdir", "rmdir", "unlink", "symlink", "fsync", "write")
_STATE_ALONE = (
    "daemon_state",
)  # a file that is only told from: to be killed there shows nothing new
_PACKAGE = f"{os.sep}inbox{os.sep}"


def install() -> None:
    """Watch the changes of this process, if it is an inbox."""
    if "inbox" not in sys.orig_argv:
        return
    for name in _CHANGES:
        setattr(os, name, _watched(name, getattr(os, name)))
    subprocess.Popen.__init__ = _watched("start", subprocess.Popen.__init__)  # type: ignore[method-assign]


def environment(folder: Path, *, kill_at: str = "", points: Path | None = None) -> dict[str, str]:
    """Return the variables for a daemon to be killed; `folder` gets a file that it loads."""
    folder.mkdir(exist_ok=True)
    program = f"import runpy\nrunpy.run_path({__file__!r})['install']()\n"
    (folder / "sitecustomize.py").write_text(program)
    root = str(Path(__file__).resolve().parents[2])
    return {
        "PYTHONPATH": os.pathsep.join([root, str(folder)]),
        "AIRLOCK_KIT_KILL_AT": kill_at,
        "AIRLOCK_KIT_POINTS": str(points or ""),
    }


def _watched(change: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **options: Any) -> Any:
        where = _where()
        if where:
            _pass(f"{where}:{change}:before")
        result = function(*args, **options)
        if where:
            _pass(f"{where}:{change}:after")
        return result

    return watched


def _where() -> str:
    """Return the function of the inbox that makes the change; "" if none does."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if _PACKAGE in code.co_filename and f"tests{_PACKAGE}" not in code.co_filename:
            module = Path(code.co_filename).stem
            return "" if module in _STATE_ALONE else f"{module}.{code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _pass(point: str) -> None:
    if file := os.environ.get("AIRLOCK_KIT_POINTS"):
        with open(file, "a") as points:  # noqa: PTH123 - Path's own functions are watched
            points.write(point + "\n")
    if point == os.environ.get("AIRLOCK_KIT_KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
