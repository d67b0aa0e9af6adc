"""An error that the user has made or can fix, told without a traceback, and the exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of a run, each with its `meaning`; docs/run-folder.md shows them to people."""

    meaning: str

    def __new__(cls, value: int, meaning: str = "") -> ExitCode:
        """Return the code, with what it means in words."""
        code = int.__new__(cls, value)
        code._value_, code.meaning = value, meaning
        return code

    DONE = 0, "done"
    USAGE = 2, "the command line, a profile or an environment variable is wrong"
    DOES_NOT_FIT = 3, "the plan does not fit this machine"
    PREFLIGHT = 4, "this machine lacks something the run needs (a GPU, a package, disk)"
    DATA = 5, "the data set cannot be read or used"
    RANK_FAILED = 10, "a rank failed"
    OUT_OF_MEMORY = 11, "out of memory, proven"
    HANG = 12, "the run hung"
    INTERRUPTED_SAVED = 20, "interrupted, a checkpoint was saved"
    INTERRUPTED_UNSAVED = 21, "interrupted, nothing was saved"


class UserError(Exception):
    """An error with the value seen and the limit, and with what to type next."""

    def __init__(self, what: str, do: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(what, do, code)  # all of them, for another process to make it again
        self.do = do
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[0]}\n  → {self.do}"
