"""`python -P -m machine.processes.child PARENT_PID MODULE ARGS…`: run MODULE; die with its parent.

Errors that users can fix are reported in a line or two, with the matching exit code. With
`--copy-to=RUN_DIR` after PARENT_PID, what is printed goes to the log of that run as well; with
`--tell=DESCRIPTOR` after that, such an error is written there as JSON, for the parent to raise.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TextIO, cast

from machine.processes.output import Output
from machine.processes.parent import die_with_parent
from machine.processes.run_log import RunLog
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir

_COPY_TO = "--copy-to="
_TELL = "--tell="
_MOST_CHARS = 2_500  # of 12 bytes at most, two texts: a pipe takes 64 KiB before it is read
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def main() -> None:
    """Run the module as `__main__`."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, _leave)
    sys.argv = sys.argv[2:]
    run_log = None
    if sys.argv[0].startswith(_COPY_TO):
        run_log = RunLog(RunDir(Path(sys.argv.pop(0).removeprefix(_COPY_TO))))
        if sys.stderr is not None:
            sys.stderr = cast("TextIO", Output(sys.stderr, run_log))
    tell = int(sys.argv.pop(0).removeprefix(_TELL)) if sys.argv[0].startswith(_TELL) else None
    output = None
    if sys.stdout is not None:  # None if the caller closed it
        output = Output(sys.stdout, run_log)
        sys.stdout = cast("TextIO", output)
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except UserError as error:
        _fail(error, tell)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        do = "free space or mend its rights, or AIRLOCK_CACHE_DIR=/elsewhere"
        _fail(UserError(f"cannot write: {error}", do=do, code=ExitCode.PREFLIGHT), tell)
    finally:
        if output is not None:
            output.discard_rest()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Exit by an exception, so that temporary folders are removed."""
    sys.exit(int(ExitCode.INTERRUPTED_UNSAVED))


def _fail(error: UserError, tell: int | None) -> None:
    if tell is None:
        print(f"airlock: {error}", file=sys.stderr)  # noqa: T201
    else:
        report = {"what": str(error.args[0])[:_MOST_CHARS], "do": error.do[:_MOST_CHARS]}
        os.write(tell, json.dumps(report).encode())
    sys.exit(int(error.code))


if __name__ == "__main__":
    main()
