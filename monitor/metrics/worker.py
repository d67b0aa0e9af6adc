"""The process that indexes what takes long, with the least priority, as long as someone looks.

It is told what to index by lines on its standard input, each a JSON object with `run` and `index`:
paths. It ends with its input, or when it has had nothing to do for a while.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

from monitor.metrics.reader import advance
from monitor.metrics.store import BrokenError, BusyError, Store, UnusableError
from rundir.paths import RunDir

BLOCK_BYTES = 2 << 20  # indexed in one transaction
INTEREST_S = 60.0  # after which a run that nobody has asked for any more is left
_IDLE_S = 10.0


def work() -> None:
    """Index what is asked for, the last first, until nobody asks."""
    os.nice(19)
    wanted: dict[tuple[str, str], float] = {}  # run and index → until when
    lines = _Lines()
    while True:
        asked = lines.new(0.0 if wanted else _IDLE_S)
        if asked is None or not (asked or wanted):
            return
        for request in asked:
            wanted.pop(request, None)
            wanted[request] = time.monotonic() + INTEREST_S
        if not wanted:
            continue
        key = next(reversed(wanted))
        if time.monotonic() > wanted[key] or _is_done(*key):
            del wanted[key]


def _is_done(run: str, index: str) -> bool:
    """Index one piece; return whether there is no more to do, or it cannot be done here."""
    try:
        with closing(Store(Path(index))) as store:
            return advance(store, RunDir(Path(run)), BLOCK_BYTES, wait_s=1.0).done
    except BusyError:
        return False
    except (BrokenError, UnusableError):  # the server finds the same, and does what there is to do
        return True


class _Lines:
    """What comes on standard input."""

    def __init__(self) -> None:
        self._rest = b""

    def new(self, timeout_s: float) -> list[tuple[str, str]] | None:
        """Return what was asked for meanwhile; None at the end of the input."""
        if not select.select([0], [], [], timeout_s)[0]:
            return []
        data = os.read(0, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError, KeyError):
                asked = json.loads(line)
                found.append((asked["run"], asked["index"]))
        return found


def main() -> int:
    """Work, and end without a word when interrupted."""
    with suppress(KeyboardInterrupt):
        work()
    return 0


if __name__ == "__main__":
    sys.exit(main())
