"""The exit codes of `./start.sh`, with their meaning."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of a run; docs/run-folder.md shows them to people."""

    DONE = 0
    USAGE = 2
    DOES_NOT_FIT = 3
    PREFLIGHT = 4
    DATA = 5
    RANK_FAILED = 10
    OUT_OF_MEMORY = 11
    HANG = 12
    INTERRUPTED_SAVED = 20
    INTERRUPTED_UNSAVED = 21

    @property
    def meaning(self) -> str:
        """The meaning of the code, in words."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.USAGE: "the command line, a profile or an environment variable is wrong",
    ExitCode.DOES_NOT_FIT: "the plan does not fit this machine",
    ExitCode.PREFLIGHT: "this machine lacks something the run needs (a GPU, a package, disk)",
    ExitCode.DATA: "the data set cannot be read or used",
    ExitCode.RANK_FAILED: "a rank failed",
    ExitCode.OUT_OF_MEMORY: "out of memory, proven",
    ExitCode.HANG: "the run hung",
    ExitCode.INTERRUPTED_SAVED: "interrupted, a checkpoint was saved",
    ExitCode.INTERRUPTED_UNSAVED: "interrupted, nothing was saved",
}
