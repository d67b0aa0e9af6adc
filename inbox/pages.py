"""The monitor's pages beside the daemon: `./airlock inbox FOLDER --profile 14b --monitor`.

A process of its own serves them, started as a person would type it; it ends with the daemon, and
its own end changes nothing here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

from inbox.layout import Layout

_LOOK_S = 0.2
_ADDRESS = re.compile(r"open (http://[^#\s]+)")


def serve_pages(layout: Layout, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Serve the pages of an inbox until this process ends; `say` is told where, or why not.

    It is called by another thread, a moment later.
    """
    words = ["monitor", "--inbox", str(layout.path), "--runs-dir", str(layout.runs)]
    words += ["--until-end-of", str(os.getpid())]
    try:
        with layout.monitor_log.open("wb") as log:
            layout.monitor_log.chmod(0o600)  # it names the token
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launch", *words],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the daemon, which may have a step to end
            )
    except OSError as error:  # no file, process or memory to be had
        say(f"no monitor: {error.strerror}; the inbox goes on without it")
        return
    threading.Thread(target=_tell, args=(layout, process, say), daemon=True).start()


def _tell(layout: Layout, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Tell where the pages are once they are there, and when they have ended."""
    address = ""
    while not address and process.poll() is None:
        with_token = _ADDRESS.search(layout.monitor_log.read_text(errors="replace"))
        if with_token is None:
            time.sleep(_LOOK_S)
            continue
        address = with_token[1]
        say(f"monitor: {address}inbox   (with controls: the address in {layout.monitor_log})")
    code = process.wait()
    rest = layout.monitor_log.read_text(errors="replace").strip().splitlines()
    why = f": {rest[0]}" if rest and not address else ""
    say(f"the monitor has ended with {code}{why}; the inbox goes on without it")
