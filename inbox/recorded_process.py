"""A process that was started here: recorded before it runs, and never mistaken for another.

A pid alone says nothing, since it may be reused; pid, start time and boot together name one
process. Signals go through a pidfd, which keeps meaning that process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rundir.process_id import boot_id, start_ticks

# The shell becomes the command once it is told to. If whoever started it is killed before the
# process is on record, its input ends, and nothing was started that nobody knows of.
_WHEN_RECORDED = 'read -r go && exec "$@" </dev/null'


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One process of this machine, whether it still runs or not."""

    pid: int
    start_ticks: int  # of the kernel's clock since boot
    boot_id: str

    @property
    def is_alive(self) -> bool:
        """True while this very process runs; a zombie does not."""
        return self.boot_id == boot_id() and start_ticks(self.pid) == self.start_ticks

    @contextlib.contextmanager
    def opened(self) -> Iterator[int | None]:
        """Yield a descriptor that is readable once the process has ended; None if it has."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            yield None
            return
        try:  # looked at after it was opened: it is this process, or gone
            yield descriptor if self.is_alive else None
        finally:
            os.close(descriptor)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this process; return False if it has ended."""
        with self.opened() as descriptor:
            if descriptor is None:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            return True


def start(
    command: Sequence[str],
    environ: Mapping[str, str],
    log: Path,
    record: Callable[[Recorded], None],
) -> subprocess.Popen[bytes]:
    """Start a command once `record` has returned; if that raises, it is never started.

    It gets a session of its own, so that Ctrl-C in a terminal reaches it only through the inbox,
    which lets a step end. Output is appended to `log`. Raises OSError.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _WHEN_RECORDED, "inbox", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin:  # ended by someone else
            ticks = start_ticks(process.pid)
            assert ticks is not None, "it waits for its input"
            record(Recorded(pid=process.pid, start_ticks=ticks, boot_id=boot_id()))
            process.stdin.write(b"go\n")
    except BaseException:
        process.wait()
        raise
    return process


def recorded(fields: Mapping[str, Any] | None) -> Recorded | None:
    """Return the process on record; None without one, or for a record of something else."""
    try:
        return None if fields is None else Recorded(**fields)
    except TypeError:
        return None
