"""An error that the user has made or can fix, reported in a line or two without a traceback."""

from __future__ import annotations

from rundir.exit_codes import ExitCode


class UserError(Exception):
    """An error with the value seen and the limit, and with what to type next."""

    def __init__(self, what: str, do: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(what, do, code)  # all of them, for another process to make it again
        self.do = do
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[0]}\n  → {self.do}"
