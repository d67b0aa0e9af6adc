"""`python -P -m monitor.metrics RUN INDEX`: the process that indexes."""

from __future__ import annotations

import sys

from monitor.metrics.index_process import main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
