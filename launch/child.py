"""`python -P -m launch.child PARENT_PID MODULE ARGS…`: run a module that dies with its parent."""

from __future__ import annotations

import runpy
import sys

from launch.parent import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
