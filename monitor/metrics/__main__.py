"""`python -P -m monitor.metrics RUN INDEX`: indexes one run with the least priority.

It ends when all is indexed, when that cannot be done here, or with its standard input.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

from monitor.metrics.indexer import advance
from monitor.metrics.store import BrokenError, BusyError, Store
from rundir.paths import RunDir

_PIECE_BYTES = 2 << 20
_BUSY_S = 0.2


def main(run: str, index: str) -> int:
    """Index the run; return 0, or 1 if the server has to see why that cannot be done."""
    os.nice(19)
    is_done = False
    while not is_done and not select.select([0], [], [], 0)[0]:
        try:
            is_done = advance(Store(Path(index)), RunDir(Path(run)), _PIECE_BYTES).done
        except BusyError:
            time.sleep(_BUSY_S)
        except (BrokenError, OSError):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
