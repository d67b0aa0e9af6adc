"""What a rank that fails tells its launcher."""

from __future__ import annotations

import resource
import traceback

from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode


def tell_failure(events: EventWriter, error: BaseException) -> str:
    """Write the event of a rank that ends by `error`; returns it as text for the log."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        error.add_note("RLIMIT_AS is set for this rank: AIRLOCK_RLIMIT_AS_GIB=0 takes it off")
    is_users = isinstance(error, UserError)  # says itself what to do: a traceback tells no more
    text = f"{error}\n" if is_users else "".join(traceback.format_exception(error))
    events.emit(
        "error",
        "rank.exception",
        exception=type(error).__name__,
        message=str(error),
        traceback=text,
        exit_code=_exit_code(error),
    )
    return text


def _exit_code(error: BaseException) -> int:
    if isinstance(error, UserError):
        return int(error.code)
    # torch's OutOfMemoryError says itself that the device is full; by name, torch may not be there.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return int(ExitCode.OUT_OF_MEMORY)
    return int(ExitCode.RANK_FAILED)
