"""Make the clone's own `.venv` from the pinned requirements with uv, or bring it up to date.

    make.py EXTRA COMMAND [ARGUMENTS...]

Called by environment.sh with any Python; EXTRA is "dev" or empty, and COMMAND with its arguments is
what the user typed. Exits with 0 and a complete `.venv`, with 4 after reporting what is wrong and
the next command to type, with 21 when interrupted. Standard library only, and no syntax newer than
Python 3.8's.

Besides packages, `.venv` holds `.airlock-installing` from the first moment until all is done;
`.airlock-installed` (and `-dev`), a copy of what is pinned, to which the former is renamed at last;
and install.log. A directory with neither of the first two is somebody else's and is not touched. An
install that was killed is started anew, since a package may be there in part; uv's cache keeps what
was fetched.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from machine.processes.parent import die_with_parent
from setup.install import LOG, PYTHON, ROOT, VENV, DiskFullError, Install, SetupError, say

INSTALLING = VENV / ".airlock-installing"

# In INSTALLING: the install failed in good order, so that the next attempt can continue from there.
ENDED = "ended by itself\n"

PREFLIGHT_FAILED = 4
INTERRUPTED = 21


def pinned(extra: str) -> dict[Path, str]:
    """Return each marker that a complete install leaves, with its text: what is pinned now."""
    texts = [
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("requirements.txt", "constraints.txt")
    ]
    markers = {VENV / ".airlock-installed": "".join(texts)}
    if extra:
        texts.append((ROOT / f"requirements-{extra}.txt").read_text(encoding="utf-8"))
        markers[VENV / f".airlock-installed-{extra}"] = "".join(texts)
    return markers


def is_whole(markers: dict[Path, str]) -> bool:
    """Return whether `.venv` is what `markers` say; environment.sh has the same rule, in shell."""
    return os.access(PYTHON, os.X_OK) and all(
        path.is_file() and path.read_text(encoding="utf-8") == text
        for path, text in markers.items()
    )


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the clone's lock, which the kernel frees however its holder ends; report its holder.

    The file stays: another process may have it open already, waiting for it.
    """
    with (ROOT / ".venv.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            say(f"waiting for process {lock.read().strip() or '?'}, which is installing .venv")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def claim(typed: str) -> None:
    """Make sure that `.venv` is ours, that it is in order, and that nobody takes it for complete.

    Raises:
        SetupError: it is somebody else's.
    """
    if VENV.is_symlink() and VENV.is_dir():
        raise SetupError(
            f"{VENV} leads to {VENV.resolve()}, which lacks what is pinned here. It may be that of "
            f"another clone, and in use, so it is left as it is. Type:\n"
            f"  rm {shlex.quote(str(VENV))} && {typed}\n      has this clone make its own"
        )
    names = {path.name for path in VENV.iterdir()} if VENV.is_dir() else {VENV.name}
    if (
        names
        and os.path.lexists(VENV)
        and not any(name.startswith(".airlock-install") for name in names)
    ):
        raise SetupError(
            f"{VENV} was not made by Airlock, so it is left as it is. Type one of these:\n"
            f"  AIRLOCK_PYTHON={shlex.quote(str(PYTHON))} {typed}\n      uses it\n"
            f"  rm -r {shlex.quote(str(VENV))}\n      removes it; Airlock then makes its own"
        )
    VENV.mkdir(exist_ok=True)
    in_order = not INSTALLING.exists() or INSTALLING.read_text(encoding="utf-8") == ENDED
    INSTALLING.write_text("")
    for marker in VENV.glob(".airlock-installed*"):
        marker.unlink()
    if in_order and os.access(PYTHON, os.X_OK):
        return
    for path in VENV.iterdir():
        if path == INSTALLING:  # marks the owner: a kill half-way must not lose that
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def make(extra: str, typed: str, markers: dict[Path, str]) -> None:
    """Make `.venv`, or continue with what is there, up to the marker.

    Raises:
        SetupError, OSError: it cannot be done.
    """
    claim(typed)
    with LOG.open("wb", buffering=0) as log:
        try:
            install = Install(extra, typed, log)
            install.make_python()
            options = install.choose_torch()
            install.install(options)
        except SetupError as error:
            if not isinstance(error, DiskFullError):
                INSTALLING.write_text(ENDED)
            raise
        install.compile()
    shutil.rmtree(VENV / ".uv", ignore_errors=True)
    for marker, text in markers.items():
        INSTALLING.write_text(text, encoding="utf-8")
        INSTALLING.replace(marker)


def explain(error: OSError, typed: str) -> str:
    """Return what the operating system refused, and what to type."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return (
            f"cannot write .venv in {ROOT} ({error.strerror}). Clone to where you can write, or:\n"
            f"  AIRLOCK_PYTHON=PATH {typed}\n      uses a Python that has all that is needed"
        )
    what = f"cannot make .venv: {error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free_gib = shutil.disk_usage(ROOT).free / (1 << 30)
        what = f"the disk is too full for .venv: {free_gib:.2f} GiB free in {ROOT}"
    return f"{what}\n  {typed}\n      goes on, once that is mended"


def interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(extra: str, *command: str) -> int:
    typed, started_s = " ".join(map(shlex.quote, command)), time.monotonic()
    signal.signal(signal.SIGTERM, interrupt)
    # If the shell that waits for this process is killed, the installation must not go on.
    die_with_parent(os.getppid(), signal.SIGTERM)
    try:
        with only_one():
            markers = pinned(extra)  # read once: a pull may change it meanwhile
            if not is_whole(markers):
                make(extra, typed, markers)
                say(f".venv is ready, in {time.monotonic() - started_s:.0f} s")
    except (SetupError, OSError) as error:
        say(explain(error, typed) if isinstance(error, OSError) else str(error))
        return PREFLIGHT_FAILED
    except KeyboardInterrupt:
        say(f"interrupted; .venv is not complete yet. To go on:\n  {typed}")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
