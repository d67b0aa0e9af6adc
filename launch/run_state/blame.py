"""Which failure the others follow from: every end of a rank has a blame, by one table.

When one rank fails, the others lose their connections, or are ended by the agent or the launcher;
all of these look like failures, and often come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from rundir.exit_codes import ExitCode


class Blame(IntEnum):
    """How likely a failure is the root cause: the lower, the likelier."""

    ROOT = 0  # it comes from outside the run, or from a crash of the rank's own
    LIKELY = 1  # an exception or exit of the rank's own
    UNKNOWN = 2
    CASCADE = 3  # what a healthy rank says when another one is gone
    ENDED_BY_US = 4


# By the text of an exception: never the cause, whichever comes first.
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
    "SIGTERM": Blame.ENDED_BY_US,  # so the agent ends survivors, after it has told of a first exit
}


@dataclass(slots=True)
class Failure:
    """One rank's end: by an exception, or by a signal or exit code that the agent saw.

    The zygote's end, which takes all ranks with it, is that of rank None; so is a hang of which no
    rank can be told to be the cause.
    """

    rank: int | None
    t: float
    title: str
    blame: Blame
    exit_code: int = ExitCode.RANK_FAILED
    traceback: str | None = None
    notes: tuple[str, ...] = ()  # what more there is to say, a line each

    @property
    def who(self) -> str:
        """Whose end it is, in words."""
        if self.rank is None:
            return "the run" if self.exit_code == ExitCode.HANG else "the zygote"
        return f"rank {self.rank}"

    @property
    def summary(self) -> str:
        """Who ended and how, on one line."""
        verb = "raised " if self.traceback else ""
        return f"{self.who} {verb}{self.title.splitlines()[0]}"


def blame_of_exception(text: str) -> Blame:
    """The blame of a rank that raised `text`."""
    is_cascade = any(sign in text.casefold() for sign in _CASCADES)
    return Blame.CASCADE if is_cascade else Blame.LIKELY


def blame_of_exit(signal: str | None, *, ended_by_launcher: bool, is_first: bool) -> Blame:
    """The blame of a rank that ended without a word.

    `is_first`: no rank of the attempt has ended in another way than by SIGTERM so far.
    """
    if ended_by_launcher:
        return Blame.ENDED_BY_US
    if signal == "SIGTERM" and is_first:
        return Blame.UNKNOWN
    return _OF_SIGNAL.get(signal or "", Blame.LIKELY)


def root_of(failures: Iterable[Failure]) -> Failure | None:
    """The failure that the others follow from: the likeliest, and of those the earliest."""
    return min(failures, key=lambda one: (one.blame, one.t), default=None)
