"""The monitor's pages beside a run or an inbox (`--monitor`): a process of its own, as if typed.

It ends with the process that it serves beside, and its own end changes nothing there.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_LOOK_S = 0.2
_ADDRESS = re.compile(r"open (http://[^:]+:(\d+)/[^#\s]*)")


def serve_pages(
    words: Sequence[str],
    log: Path,
    env: Mapping[str, str],
    say: Callable[[str], object],
    *,
    page: str = "",
    beside: str,
) -> int | None:
    """Serve what the arguments `words` name until this process ends; return the server's pid.

    `say` is told where the `page` is, or why not, a moment later and by another thread. Without
    the pages, `beside` goes on.
    """
    command = [sys.executable, "-P", "-m", "launch", "monitor", *words]
    try:
        with log.open("wb") as output:
            log.chmod(0o600)  # it names the token
            process = subprocess.Popen(
                [*command, "--until-end-of", str(os.getpid())],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for what it serves, which may have work to end
            )
    except OSError as error:  # no file, process or memory to be had
        say(f"no monitor: {error.strerror}; {beside} goes on without it")
        return None
    threading.Thread(target=_tell, args=(process, log, say, page, beside), daemon=True).start()
    return process.pid


def _tell(
    process: subprocess.Popen[bytes],
    log: Path,
    say: Callable[[str], object],
    page: str,
    beside: str,
) -> None:
    """Tell where the pages are once they are there, and when they have ended."""
    address = None
    while address is None and process.poll() is None:
        address = _ADDRESS.search(log.read_text(errors="replace"))
        if address is None:
            time.sleep(_LOOK_S)
            continue
        port = address[2]
        say(
            f"monitor: {address[1]}{page}\n  with controls: the address in {log}; from elsewhere: "
            f"ssh -L {port}:localhost:{port} {socket.gethostname()}"
        )
    code = process.wait()
    rest = log.read_text(errors="replace").strip().splitlines()
    why = f": {rest[0]}" if rest and address is None else ""
    say(f"the monitor has ended with {code}{why}; {beside} goes on without it")
