"""`python -P -m launch.process.child PARENT_PID MODULE ARGS…`: run MODULE, and die with the parent.

Errors that users can fix are reported in a line or two, with the matching exit code.
"""

from __future__ import annotations

import errno
import runpy
import signal
import sys
from types import FrameType
from typing import TextIO, cast

from launch.process.output import Output
from launch.process.parent import die_with_parent
from rundir.errors import UserError
from rundir.exit_codes import ExitCode

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def main() -> None:
    """Run the module as `__main__`."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, _leave)
    sys.argv = sys.argv[2:]
    output = None
    if sys.stdout is not None:  # None if the caller closed it
        output = Output(sys.stdout)
        sys.stdout = cast("TextIO", output)
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except UserError as error:
        _fail(str(error), error.code)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        do = "free space or mend its rights, or AIRLOCK_CACHE_DIR=/elsewhere"
        _fail(f"cannot write: {error}\n  → {do}", ExitCode.PREFLIGHT)
    finally:
        if output is not None:
            output.discard_rest()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Exit by an exception, so that temporary folders are removed."""
    sys.exit(int(ExitCode.INTERRUPTED_UNSAVED))


def _fail(text: str, code: ExitCode) -> None:
    print(f"airlock: {text}", file=sys.stderr)  # noqa: T201
    sys.exit(int(code))


if __name__ == "__main__":
    main()
