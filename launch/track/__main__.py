"""`python -P -m launch.track RUN_DIR TRACKER PARENT_PID`: the process that tracks a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launch.track.tracking_process import track_beside
from rundir.paths import RunDir

if __name__ == "__main__":
    code = track_beside(RunDir(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
    if code:
        os._exit(code)  # a library that has failed may hang as it cleans up
