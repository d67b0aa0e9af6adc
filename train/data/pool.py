"""Parallel work on many blocks, in order, on all cores and in bounded memory.

Processes, not threads: the work around tokenising (parsing, templates, Arrow) is Python, and would
keep many cores waiting for one. They are forks, so the tokenizer is in memory only once. This
process has no threads at that point, and whatever ends it closes the pipe that tells the others to
end.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from rundir.errors import ExitCode, UserError

Item = TypeVar("Item")
Done = TypeVar("Done")

_MOST_PROCESSES = 16  # with some 60 MB each of their own; beyond that each has several threads
_AHEAD = 2  # blocks queued for each process

_work: Callable[[Any], Any] | None = None


def num_processes() -> int:
    """Return the number of cores, but no more than a fixed limit."""
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def in_order(
    work: Callable[[Item], Done], items: Iterable[Item], processes: int
) -> Generator[Done]:
    """Yield `work` of each item, in order; with fewer than 2 processes it runs in this one.

    `work` need not be picklable, but its results must be. Raises what `work` raises, and UserError
    if a process was killed.
    """
    global _work  # noqa: PLW0603 - for the forks to find
    if processes < 2:  # noqa: PLR2004
        yield from map(work, items)
        return
    _work = work
    ours, theirs = os.pipe()
    pool = ProcessPoolExecutor(processes, get_context("fork"), _begin, (ours, theirs, processes))
    waiting: deque[Future[Done]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_do, item))
            if len(waiting) >= processes * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            "a process that prepares data was killed",
            do="if nobody did that, memory ran out: `dmesg | grep -i oom`",
            code=ExitCode.PREFLIGHT,
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        os.close(ours)
        os.close(theirs)
        _work = None


def _begin(ours: int, theirs: int, processes: int) -> None:
    """Prepare a new fork: end when the parent does, and leave other cores to the others."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(theirs)
    threading.Thread(target=_end_with, args=(ours,), daemon=True).start()
    threads = len(os.sched_getaffinity(0)) // processes
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(max(1, threads))


def _end_with(pipe: int) -> None:
    os.read(pipe, 1)  # nobody writes: it returns when the last possible writer is gone
    os._exit(1)


def _do(item: Any) -> Any:
    assert _work is not None
    return _work(item)
