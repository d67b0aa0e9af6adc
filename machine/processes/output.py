"""Standard output whose failure never ends a run: full disk, closed terminal, reader gone."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from machine.processes.signals import Interrupted
from rundir.errors import ExitCode, UserError

if TYPE_CHECKING:
    from machine.processes.line_console import LineConsole
    from machine.processes.run_log import RunLog


class Output:
    """A text stream that discards all output once writing has failed.

    What is written also goes to the log `copy_to`, if that is given.
    """

    def __init__(self, stream: IO[str], copy_to: RunLog | None = None) -> None:
        self._stream, self._copy_to = stream, copy_to
        self._is_lost = False
        self.on_reader_gone: Callable[[], None] = lambda: None

    def write(self, text: str) -> int:
        """Write `text`, or discard it."""
        self._do(lambda: self._stream.write(text))
        if self._copy_to is not None:
            self._copy_to.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._do(self._stream.flush)

    def discard_rest(self) -> None:
        """Flush at the end of the program, so that lost output does not fail again at exit."""
        self.flush()
        if self._is_lost:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def _do(self, action: Callable[[], Any]) -> None:
        if self._is_lost:
            return
        try:
            action()
        except BrokenPipeError:
            self._is_lost = True
            self.on_reader_gone()
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._is_lost = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # isatty, fileno, encoding and the like


def make_console() -> tuple[LineConsole, Output]:
    """Return a console on standard output, and the `Output` it writes to."""
    if sys.stdout is None:  # closed by the caller (`>&-`)
        sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115, PTH123 - never closed
    with contextlib.suppress(AttributeError):
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # "→" in a C locale
    from machine.processes.line_console import LineConsole  # children do not need rich

    output = Output(sys.stdout)
    return LineConsole(output), output  # type: ignore[arg-type]  # it has all that rich uses of IO


def with_console(command: Callable[..., ExitCode | None]) -> Callable[..., NoReturn]:
    """Return a function that calls `command` with a console first, and ends as `end_with` does."""

    @functools.wraps(command)
    def call(**options: Any) -> NoReturn:
        end_with(lambda console, _: command(console, **options))

    return call


def end_with(command: Callable[[LineConsole, Output], ExitCode | None]) -> NoReturn:
    """Run `command`, and exit with the code that it returns or raises; None is 0.

    One that raises Interrupted has saved nothing.
    """
    console, output = make_console()
    try:
        code = command(console, output) or ExitCode.DONE
    except Interrupted:
        code = ExitCode.INTERRUPTED_UNSAVED
    except UserError as error:
        click.echo(f"airlock: {error}", err=True)
        console.keep(f"airlock: {error}\n")
        code = error.code
    output.discard_rest()
    sys.exit(int(code))
