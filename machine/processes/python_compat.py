"""Private names of CPython 3.11 to 3.13 that Airlock uses; tests/test_compat.py checks them."""

from __future__ import annotations

import atexit
import multiprocessing.util
import threading
from importlib import import_module
from multiprocessing import forkserver

# By name: to mypy they are there or not, depending on which file it read first.
regex_opcodes = import_module("re._constants")
regex_parser = import_module("re._parser")

PRIVATE = (  # module:attribute
    "atexit:_clear",
    "atexit:_run_exitfuncs",
    "multiprocessing.forkserver:_forkserver._forkserver_pid",
    "multiprocessing.util:_exit_function",
    "re:_constants",
    "re:_parser.parse",
    "sys:_getframe",
    "threading:_shutdown",
)


def forkserver_pid() -> int | None:
    """Return the pid of this process's forkserver, or None; there is no public name for it."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def begin_exit_handlers_anew() -> None:
    """Drop the parent's exit handlers in a fork, so that only this process's own run.

    CPython does so itself from 3.13 on; before, multiprocessing loses its handler in a fork.
    """
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]


def run_exit_handlers() -> None:
    """Run the functions registered with atexit, as the interpreter does at exit."""
    atexit._run_exitfuncs()


def join_threads() -> None:
    """Wait for threads and executors, as the interpreter does before running exit handlers."""
    threading._shutdown()  # type: ignore[attr-defined]
