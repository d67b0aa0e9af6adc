"""Make the clone's own `.venv` from the pinned requirements with uv, or bring it up to date.

    make.py .venv EXTRA COMMAND [ARGUMENTS...]

The arguments are those of missing.py. Exits with 0 and a complete `.venv`, with 4 after reporting
what is wrong and the next command to type, with 21 when interrupted. Standard library only, and no
syntax newer than Python 3.8's.

Besides packages, `.venv` holds `.airlock-installing` from the first moment until all is done;
`.airlock-installed` (and `-dev`), a copy of what is pinned, to which the former is renamed at last;
and install.log. A directory with neither of the first two is somebody else's and is not touched. An
install that ended half-way is started anew, since a package may be there in part; uv's cache keeps
what was fetched.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

from machine.processes.parent import die_with_parent
from setup.install import LOG, PYTHON, VENV, Install, SetupError, say
from setup.missing import PREFLIGHT_FAILED, ROOT

INSTALLING = VENV / ".airlock-installing"

# In INSTALLING while no package was touched, so that the next attempt can continue from there.
UNTOUCHED = "untouched\n"
INTERRUPTED = 21


def pinned(extra: str) -> dict[Path, str]:
    """Return each marker that a complete install leaves, with its text: what is pinned now."""
    text = "".join((ROOT / f"{name}.txt").read_text() for name in ("requirements", "constraints"))
    markers = {VENV / ".airlock-installed": text}
    if extra:
        text += (ROOT / f"requirements-{extra}.txt").read_text()
        markers[VENV / f".airlock-installed-{extra}"] = text
    return markers


def is_whole(markers: dict[Path, str]) -> bool:
    """Return whether `.venv` is what `markers` say; environment.sh has the same rule, in shell."""
    return os.access(PYTHON, os.X_OK) and all(
        path.is_file() and path.read_text() == text for path, text in markers.items()
    )


def claim(typed: str) -> None:
    """Make sure that `.venv` is in order, and that nobody takes it for complete.

    Raises SetupError if it is somebody else's.
    """
    is_own = VENV.is_dir() and not VENV.is_symlink()
    if is_own and any(VENV.iterdir()):
        is_own = any(VENV.glob(".airlock-install*"))
    if os.path.lexists(VENV) and not is_own:
        raise SetupError(
            f"{VENV} was not made by this clone, so it is left as it is. Type one of these:\n"
            f"  AIRLOCK_PYTHON={shlex.quote(str(PYTHON))} {typed}\n      uses it\n"
            f"  rm -r {shlex.quote(str(VENV))}\n      removes it; Airlock then makes its own"
        )
    VENV.mkdir(exist_ok=True)
    is_in_order = not INSTALLING.exists() or INSTALLING.read_text() == UNTOUCHED
    if is_in_order and os.access(PYTHON, os.X_OK):
        INSTALLING.write_text(UNTOUCHED)
    else:
        INSTALLING.write_text("")
        for path in VENV.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != INSTALLING:  # marks the owner: a kill half-way must not lose that
                path.unlink()
    for marker in VENV.glob(".airlock-installed*"):
        marker.unlink()


def make(extra: str, typed: str, markers: dict[Path, str]) -> None:
    """Make `.venv`, or continue with what is there. Raises SetupError or OSError."""
    claim(typed)
    with LOG.open("wb", buffering=0) as log:
        install = Install(extra, typed, log)
        if INSTALLING.read_text() != UNTOUCHED:
            install.make_python()
            INSTALLING.write_text(UNTOUCHED)
        options = install.choose_torch()
        INSTALLING.write_text("")
        install.install(options)
    shutil.rmtree(VENV / ".uv", ignore_errors=True)
    for marker, text in markers.items():
        INSTALLING.write_text(text)
        INSTALLING.replace(marker)


def make_if_need_be(extra: str, typed: str) -> None:
    """Make `.venv` unless it is whole. Raises SetupError or OSError.

    Only one process at a time does so: it holds a lock, which the kernel frees however it ends.
    """
    started_s = time.monotonic()
    # The lock's file stays: another process may have it open already, waiting for it.
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
        markers = pinned(extra)  # read once: a pull may change it meanwhile
        if not is_whole(markers):
            make(extra, typed, markers)
            say(f".venv is ready, in {time.monotonic() - started_s:.0f} s")


def main(_what: str, extra: str, *command: str) -> int:
    typed = " ".join(map(shlex.quote, command))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # If the shell that waits for this process is killed, the installation must not go on.
    die_with_parent(os.getppid(), signal.SIGTERM)
    try:
        make_if_need_be(extra, typed)
    except SetupError as error:
        say(str(error))
        return PREFLIGHT_FAILED
    except OSError as error:
        free_gib = shutil.disk_usage(ROOT).free / (1 << 30)
        say(
            f"cannot make .venv in {ROOT}, where {free_gib:.2f} GiB are free: {error}\n  {typed}\n"
            "      goes on, once that is mended; AIRLOCK_PYTHON=PATH before it uses a Python that"
            " has all that is needed"
        )
        return PREFLIGHT_FAILED
    except KeyboardInterrupt:
        say(f"interrupted; .venv is not complete yet. To go on:\n  {typed}")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
