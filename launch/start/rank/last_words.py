"""The last words of a failing rank: the error that it reports to its launcher."""

from __future__ import annotations

import traceback
from typing import Any

from machine.memory.limits import is_out_of_memory, note_address_space
from rundir.errors import UserError
from rundir.events import EventWriter
from rundir.exit_codes import ExitCode


def tell_failure(events: EventWriter, error: BaseException) -> str:
    """Write the event of a rank that `error` ends; return the error as text for the log."""
    words = last_words(error)
    events.emit("error", "rank.exception", **words)
    return str(words["traceback"])


def last_words(error: BaseException) -> dict[str, Any]:
    """Return the fields of the `rank.exception` event for `error`."""
    if is_out_of_memory(error):
        traceback.clear_frames(error.__traceback__)  # frees the memory that reporting needs
        note_address_space(error)
    is_users = isinstance(error, UserError)  # its message says what to do: a traceback adds nothing
    text = f"{error}\n" if is_users else "".join(traceback.format_exception(error))
    return {
        "exception": type(error).__name__,
        "message": str(error),
        "traceback": text,
        "exit_code": _exit_code(error),
    }


def _exit_code(error: BaseException) -> int:
    if isinstance(error, UserError):
        return int(error.code)
    return int(ExitCode.OUT_OF_MEMORY if is_out_of_memory(error) else ExitCode.RANK_FAILED)
