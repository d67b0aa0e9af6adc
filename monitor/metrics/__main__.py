"""`python -P -m monitor.metrics`: the process that indexes."""

from __future__ import annotations

import sys

from monitor.metrics.worker import main

if __name__ == "__main__":
    sys.exit(main())
