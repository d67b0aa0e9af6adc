"""Trial of an address-space limit: reserve as much as a rank does, and start as many threads.

The trial runs in a process of its own, `python launch/host/address_probe.py LIMIT RESERVED
THREADS`, which needs no packages. Near its limit Python can wait forever for a thread that never
started, so an alarm signal ends the trial after a timeout.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

_LONGEST_S = 5
_PROT_NONE = 0


def probe(limit_bytes: int, reserved_bytes: int, num_threads: int) -> str | None:
    """Try a limit in a child process; return the reason for a failure, or None on success.

    Within `limit_bytes`, the child reserves `reserved_bytes` and starts `num_threads` threads.
    """
    figures = [str(number) for number in (limit_bytes, reserved_bytes, num_threads)]
    command = [sys.executable, "-I", "-S", str(Path(__file__)), *figures]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return None
    if done.returncode == -signal.SIGALRM:
        return f"it did not start {num_threads} threads within {_LONGEST_S} s"
    return (done.stdout.strip() or done.stderr.strip() or f"it ended with {done.returncode}")[-200:]


def _main() -> None:
    signal.alarm(_LONGEST_S)  # SIGALRM ends the process by default
    limit_bytes, reserved_bytes, num_threads = map(int, sys.argv[1:])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    doing = f"reserve {reserved_bytes / 2**30:.2f} GiB"
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        held = mmap.mmap(-1, reserved_bytes, flags=flags, prot=_PROT_NONE)
        doing = f"start {num_threads} threads"
        end = threading.Event()
        for _ in range(num_threads):
            threading.Thread(target=end.wait).start()
        end.set()
        held.close()
    except (OSError, MemoryError, RuntimeError) as error:
        sys.stdout.write(f"it cannot {doing}: {error or 'out of memory'}")
        sys.stdout.flush()
        os._exit(1)  # without waiting for the threads that did start


if __name__ == "__main__":
    _main()
