"""Private names of CPython 3.11 to 3.13 that Airlock uses; tests/test_compat.py checks them."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from multiprocessing import forkserver, resource_tracker
from types import ModuleType
from typing import Any, NoReturn

# By name: to mypy they are there or not, depending on which file it read first.
regex_opcodes = import_module("re._constants")
regex_parser = import_module("re._parser")

_util: Any = multiprocessing.util
_spawn = _util.spawnv_passfds

PRIVATE = (  # module:attribute
    "atexit:_clear",
    "atexit:_run_exitfuncs",
    "multiprocessing.forkserver:_forkserver._forkserver_pid",
    "multiprocessing.resource_tracker:_resource_tracker",
    "multiprocessing.util:_exit_function",
    "multiprocessing.util:spawnv_passfds",
    "re:_constants",
    "re:_parser.parse",
    "sys:_getframe",
    "threading:_shutdown",
)


def forkserver_pid() -> int | None:
    """Return the pid of this process's forkserver, or None; there is no public name for it."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def fork_forkserver() -> None:
    """Start this process's forkserver as a fork of it, so that it has what is imported here.

    Otherwise it is a fresh interpreter. To be called while this process has a single thread. Raises
    OSError, as `forkserver.ensure_running` does.
    """
    resource_tracker.ensure_running()  # a fresh interpreter, as ever
    _util.spawnv_passfds = _fork_and_run
    try:
        forkserver.ensure_running()
    finally:
        _util.spawnv_passfds = _spawn


def _fork_and_run(_path: str, args: Sequence[str], passed: Sequence[int]) -> int:
    """Do what `util.spawnv_passfds` does for `python -c PROGRAM`, without a new interpreter."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    pid = os.fork()
    if pid == 0:
        _run_as_new(args[-1], passed)
    return pid


def _run_as_new(program: str, descriptors: Sequence[int]) -> NoReturn:
    """Run `program` in this fork, with nothing of the parent's but its modules and variables."""
    code = 1
    try:
        for before, after in pairwise((2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX"))):
            os.closerange(before + 1, after)
        for number in signal.valid_signals() - {signal.SIGINT}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        sys.stdout, sys.stderr, sys.argv = sys.__stdout__, sys.__stderr__, ["-c"]
        sys.modules["__main__"] = ModuleType("__main__")
        _util.spawnv_passfds = _spawn
        for server in (forkserver._forkserver, resource_tracker._resource_tracker):
            type(server).__init__(server)  # the parent's server, and locks that it holds
        exec(program, {"__name__": "__main__"})  # noqa: S102 - multiprocessing's own words
        code = 0
    except SystemExit:
        code = 0
    except BaseException:  # noqa: BLE001 - as the interpreter would, at its end
        traceback.print_exc()
    finally:
        os._exit(code)


def begin_exit_handlers_anew() -> None:
    """Drop the parent's exit handlers in a fork, so that only this process's own run.

    CPython does so itself from 3.13 on; before, multiprocessing loses its handler in a fork.
    """
    atexit._clear()
    atexit.register(_util._exit_function)


def run_exit_handlers() -> None:
    """Run the functions registered with atexit, as the interpreter does at exit."""
    atexit._run_exitfuncs()


def join_threads() -> None:
    """Wait for threads and executors, as the interpreter does before running exit handlers."""
    threading._shutdown()  # type: ignore[attr-defined]
