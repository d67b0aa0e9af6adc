"""`python -P -m launch.track RUN_DIR TRACKER PARENT_PID`: what the launcher starts beside a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from launch.track.process import track_beside
from rundir.paths import RunDir

if __name__ == "__main__":
    code = track_beside(RunDir(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
    if code:
        os._exit(code)  # what a library still has to do at its end may hang, as it has failed
