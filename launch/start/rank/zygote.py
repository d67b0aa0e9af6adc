"""The zygote: imports the heavy libraries and builds the model once; every rank is a fork of it.

It is the server process of `multiprocessing`'s forkserver, and `warm_up` is what that process does
before it serves. The contract:

* it holds the node's gate while it imports and builds, as a rank would;
* it has one thread and never touches CUDA, and verifies both; otherwise it must not be forked;
* any error is caught and reported in the mark `zygote.ready`, the last thing it does. The agent
  reads that mark and, if there is an error, starts cold ranks (launch/start/agent/warm_start.py).
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from launch.start.gate.gate import Admit, Visitor
from launch.start.rank.admission import through_gate
from launch.start.rank.fork_safety import Inspection, cuda_is_touched, inspect
from launch.start.rank.reporter import Reporter, write_output_to
from launch.start.rank.script_imports import LEFT_OUT
from launch.start.rank.script_preload import UnfitError, import_in_zygote, set_variables
from launch.start.rank.standard_input import keep_input
from machine.cores.binding import spread_pages
from machine.memory.limits import apply_limits
from machine.processes.parent import die_with_parent
from rundir.config_file import read_config
from rundir.events import EventWriter
from rundir.paths import RunDir
from rundir.starts import start_of

# A parallel region leaves worker threads behind, and with them locks that no fork can release. The
# libraries read these variables while they are loaded; a rank gets its own number of threads after
# the fork.
_ONE_THREAD = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
    ),
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # transformers would read weights in a thread pool
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow's allocator cleans up in a thread
}


@dataclass(slots=True)
class Zygote:
    """The state that ranks inherit from the process they are forked from."""

    pid: int
    variables: dict[str, str | None]  # as the agent set them, to be restored in the ranks
    main_process: BaseProcess  # multiprocessing's object for a process that it has not started
    model: Any = None
    unfit: str | None = "it is not ready"  # the reason why it must not be forked


current: Zygote | None = None


def kind_of_start() -> str:
    """Return `forked` for a rank forked from a zygote, and `alone` for any other.

    A rank started alone takes more memory. One attempt has both kinds when forking from the zygote
    turns out to be impossible after all.
    """
    return "alone" if current is None else "forked"


def warm_up() -> None:
    """Make this process, in its main thread, one that ranks can be forked from. Never raises."""
    global current  # noqa: PLW0603 - a fork inherits memory, and this is where it looks
    die_with_parent(int(os.environ["AIRLOCK_AGENT_PID"]))
    run = RunDir(Path(os.environ["AIRLOCK_RUN_DIR"]))
    keep_input()
    write_output_to(run.zygote_log, run.stacks("zygote"))
    events = EventWriter(run.event_file("zygote"))
    current = Zygote(os.getpid(), _one_thread(), multiprocessing.current_process())
    gc.disable()  # as in ranks/heavy_imports.py
    inspection = Inspection(num_threads=1, cuda_touched=False)
    try:
        current.model = _import_and_build(run, Reporter(events, "Zygote"))
        inspection = inspect(with_a_fork=True)
        current.unfit = inspection.why_not_to_fork
    except UnfitError as error:
        inspection, current.unfit = inspect(), str(error)
    except BaseException as error:  # noqa: BLE001 - the forkserver would swallow it, or just end
        traceback.print_exc()
        current.unfit = f"{type(error).__name__}: {error}"
    gc.freeze()  # else a rank's first collection writes to, and so copies, every inherited page
    sys.stdout.flush()
    sys.stderr.flush()
    num_lost = events.num_lost
    events.emit(
        "mark",
        "zygote.ready",
        unfit=current.unfit,
        num_threads=inspection.num_threads,
        cuda_touched=inspection.cuda_touched,
    )
    if events.num_lost > num_lost:
        os._exit(1)  # a full disk: the agent cannot read the mark, but sees that this process ends
    events.close()


def _one_thread() -> dict[str, str | None]:
    """Set the variables of a process with one thread; return what they were."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    return before


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have what is imported within the block start no threads."""
    before = _one_thread()
    try:
        yield
    finally:
        set_variables(before)


def _import_and_build(run: RunDir, report: Reporter) -> Any:
    """Import, and build the model if that is the zygote's job; return it, or None."""
    config = read_config(run.config)
    events = report.events
    apply_limits(config.limits)
    report.memory("START")
    visitor = Visitor(run_id=run.run_id, attempt="zygote", who=report.who.lower(), turn=None)
    admit: Admit = "open" if config.launch.admit == "open" else "serial"
    timeout_s = config.launch.gate_timeout_s
    with through_gate(report, visitor, admit=admit, timeout_s=timeout_s) as gate:
        gate.phase("importing")
        if config.script is not None:
            import_in_zygote(config.script, report)
            report.memory("POST-IMPORT")
            return None
        from train import warm

        import_libraries(warm.imports(config, run), events)
        report.memory("POST-IMPORT")
        if not start_of(config).zygote_builds:
            return None
        report.bound(spread_pages(os.environ))  # what is built here is read by all ranks
        gate.phase("loading")
        with events.span("zygote.build"):
            model = warm.build(config, run)
        report.memory("POST-MODEL")
        return model


def import_libraries(
    imports: Iterable[tuple[str, Callable[[], None]]], events: EventWriter
) -> None:
    """Import the libraries in order. Raises UnfitError for the first that initialises CUDA."""
    for library, load in imports:
        with events.span("zygote.import", what=library):
            load()
        if cuda_is_touched():
            suspects = sorted(name for name in LEFT_OUT if name in sys.modules)
            with_ = f" (with {', '.join(suspects)})" if suspects else ""
            raise UnfitError(
                f"importing {library}{with_} has initialised CUDA in it, "
                "which no fork can use again"
            )
