"""A rank that runs the user's script as torchrun would, with only the script's own traceback."""

from __future__ import annotations

import builtins
import gc
import importlib.util
import json
import multiprocessing.process
import os
import sys
import weakref
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from launch.process.python_compat import join_threads, run_exit_handlers
from launch.rank import zygote
from launch.rank.last_words import tell_failure
from launch.rank.reporter import Reporter
from launch.rank.script_gate import ScriptGate
from launch.rank.script_preload import import_in_rank
from rundir.config import RunConfig
from rundir.events import EventWriter
from rundir.paths import ROOT, RunDir

_API = ROOT / "api"
_INTERRUPTED = 130  # a shell's exit code for a process that Ctrl-C has ended

_OURS = str(Path(__file__).parents[1]) + "/"


def hide_own_frames(error: BaseException) -> None:
    """Remove frames of `launch` from the tracebacks of `error`, its causes and contexts."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_own(one.__traceback__)
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions


def _without_own(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_OURS):
            entries.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


def run_script(config: RunConfig, run: RunDir, place: Any, report: Reporter) -> int:
    """Run the script of `config` as this rank, at first inside the gate.

    Returns the exit code of this process, unless it ends here. `place` is a
    launch.rank.rank.RankPlace. Raises whatever goes wrong before the script has begun.
    """
    assert config.script is not None
    parent = zygote.current
    is_fork = parent is not None
    gate = ScriptGate(
        report,
        config.launch,
        run_id=run.run_id,
        attempt=place.gate_attempt,
        local_rank=place.local_rank,
        num_ranks=place.local_world_size,
    )
    entered = gate.enter()
    entered.phase("importing")
    if not is_fork:
        with report.events.span("import"):
            import_in_rank(config.script, report)
    report.memory("POST-IMPORT")
    entered.phase("running the script")
    gate.leave_at_first_meeting()
    gate.leave_when_quiet()
    if parent is not None:
        _be_the_main_process(parent.main_process)
    path = Path(config.script.path)
    _step_aside(path, gate)
    sys.argv = [str(path), *config.script.args]
    code, has_failed = _execute(path, report.events, place.rank)
    if code == 0 and not has_failed:  # else its memory says nothing about other ranks
        gate.leave()
    if is_fork or has_failed:
        _end(code, has_failed=has_failed)
    return code


def _be_the_main_process(process: multiprocessing.process.BaseProcess) -> None:
    """Make multiprocessing take this fork for a main process, not for a child of its own."""
    module: Any = multiprocessing.process
    module._current_process = process
    module._parent_process = None
    process.name = "MainProcess"  # the fork has renamed it
    # Finalizers registered for the exit of the zygote are not this process's to run.
    finalize: Any = weakref.finalize
    finalize._registry.clear()
    finalize._registered_with_atexit = False


def _step_aside(path: Path, gate: ScriptGate) -> None:
    """Remove from this process everything that a script could find in place of its own.

    Its modules may have the same names as ours. Nothing of ours can be imported from here on.
    """
    for name, value in json.loads(os.environ.pop("AIRLOCK_SCRIPT_ENVIRONMENT")).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    ours = {
        name
        for name, module in sys.modules.items()
        if getattr(module, "__file__", None) == str(ROOT / name / "__init__.py")
    }
    for name in list(sys.modules):
        if name.partition(".")[0] in ours:
            del sys.modules[name]
    own_folder = [] if os.environ.get("PYTHONSAFEPATH") else [str(path.resolve().parent)]
    sys.path[:] = [*own_folder, *(entry for entry in sys.path if entry != str(ROOT)), str(_API)]
    _offer_gate(gate)


def _offer_gate(gate: ScriptGate) -> None:
    """Connect `import airlock` to the gate, unless the script has a module of that name."""
    found = importlib.util.find_spec("airlock")
    if found is not None and found.origin == str(_API / "airlock.py"):
        importlib.import_module("airlock")._gate = gate.again  # type: ignore[attr-defined]


def _execute(path: Path, events: EventWriter, rank: int) -> tuple[int, bool]:
    """Run the script as `__main__`; return its exit code, and whether an exception ended it."""
    main: Any = ModuleType("__main__")
    main.__file__ = str(path)
    main.__builtins__ = builtins
    main.__loader__ = SourceFileLoader("__main__", str(path))
    main.__cached__ = None
    sys.modules["__main__"] = main
    try:
        with events.span("script"):
            program = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            exec(program, main.__dict__)  # noqa: S102 - running it is the purpose
    except SystemExit as error:
        code = _exit_status(error)
        if code != 0:
            # Reported now: others may fail because of it, and be seen to end before this one.
            events.emit("error", "rank.exit", failed_rank=rank, exitcode=code, signal=None)
        return code, False
    except BaseException as error:  # noqa: BLE001 - the launcher has to hear of it
        hide_own_frames(error)
        tell_failure(events, error)
        sys.excepthook(type(error), error, error.__traceback__)
        return (_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1), True
    return 0, False


def _exit_status(error: SystemExit) -> int:
    """Return the exit status that Python derives from `sys.exit(code)`; print any message."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _end(code: int, *, has_failed: bool) -> NoReturn:
    """End this process with `code`, as Python does at the end of a script.

    In a fork, Python would skip part of that. A failed rank skips destructors: those of a broken
    process group can wait for ranks that never come.
    """
    if not has_failed:
        join_threads()
    run_exit_handlers()
    if not has_failed:
        sys.modules["__main__"].__dict__.clear()  # closes files that the script has left open
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
