"""Blame: the likelihood that a failure is the root cause, from one table for all ends of a rank.

When one rank fails, the others lose their connections, or are ended by the agent or the launcher;
all of these look like failures, and often come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from rundir.errors import ExitCode


class Blame(IntEnum):
    """The likelihood that a failure is the root cause: the lower the value, the likelier."""

    ROOT = 0  # from outside the run, or from a crash of the rank itself
    LIKELY = 1  # an exception or exit of the rank's own
    UNKNOWN = 2
    CASCADE = 3  # the error of a healthy rank when another one is gone
    ENDED_BY_US = 4


# Matched in the text of an exception: never the cause, even if it comes first.
_CASCADES = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket closed",
    "connection was aborted",
    "remote process exited",
    "nccl communicator",
)
# By the signal that ended a rank; any other end is LIKELY. A lost peer never causes a ROOT signal.
_OF_SIGNAL = {
    "SIGKILL": Blame.ROOT,
    "SIGSEGV": Blame.ROOT,
    "SIGBUS": Blame.ROOT,
    "SIGILL": Blame.ROOT,
    "SIGFPE": Blame.ROOT,
    "SIGTERM": Blame.ENDED_BY_US,  # how the agent ends survivors, after reporting a first exit
}


@dataclass(slots=True)
class Failure:
    """The end of one rank: by an exception, or by a signal or exit code that the agent saw.

    The end of the zygote, which takes all ranks with it, has rank None; so has a hang that no rank
    can be shown to have caused.
    """

    rank: int | None
    t: float
    title: str
    blame: Blame
    exit_code: int = ExitCode.RANK_FAILED
    traceback: str | None = None
    notes: tuple[str, ...] = ()  # further details, one line each

    @property
    def who(self) -> str:
        """A phrase for what ended: the run, the zygote or a rank."""
        if self.rank is None:
            return "the run" if self.exit_code == ExitCode.HANG else "the zygote"
        return f"rank {self.rank}"

    @property
    def summary(self) -> str:
        """One line that says who ended and how."""
        verb = "raised " if self.traceback else ""
        return f"{self.who} {verb}{self.title.splitlines()[0]}"


def blame_of_exception(text: str) -> Blame:
    """Return the blame of a rank that raised an exception with this text."""
    is_cascade = any(sign in text.casefold() for sign in _CASCADES)
    return Blame.CASCADE if is_cascade else Blame.LIKELY


def blame_of_exit(signal: str | None, *, ended_by_launcher: bool, is_first: bool) -> Blame:
    """Return the blame of a rank that ended without reporting an exception.

    `is_first`: so far, no rank of the attempt has ended in another way than by SIGTERM.
    """
    if ended_by_launcher:
        return Blame.ENDED_BY_US
    if signal == "SIGTERM" and is_first:
        return Blame.UNKNOWN
    return _OF_SIGNAL.get(signal or "", Blame.LIKELY)


def root_of(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that the others follow from: the likeliest, and of those the earliest."""
    return min(failures, key=lambda failure: (failure.blame, failure.t), default=None)
