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
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from launch.start.rank import zygote
from launch.start.rank.learned_imports import Watch
from launch.start.rank.reporter import Reporter, tell_failure
from launch.start.rank.script_end import ScriptEnd
from launch.start.rank.script_gate import ScriptGate
from launch.start.rank.script_preload import import_in_rank, set_variables
from launch.start.rank.standard_input import give_input
from machine.processes.python_compat import join_threads, run_exit_handlers
from rundir.config import RunConfig, ScriptConfig
from rundir.events import EventWriter
from rundir.paths import ROOT, RunDir

_API = ROOT / "api"
_INTERRUPTED = 130  # a shell's exit code for a process that Ctrl-C has ended

_OURS = tuple(f"{ROOT}/{name}/" for name in ("launch", "machine", "ranks"))


def hide_own_frames(error: BaseException) -> None:
    """Remove Airlock's own frames from the tracebacks of `error`, its causes and contexts."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        exception = todo.pop()
        if exception is None or id(exception) in seen:
            continue
        seen.add(id(exception))
        exception.__traceback__ = _without_own(exception.__traceback__)
        todo += [exception.__cause__, exception.__context__]
        if isinstance(exception, BaseExceptionGroup):
            todo += exception.exceptions


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
    launch.start.rank.rank.RankPlace. Raises whatever goes wrong before the script has begun.
    """
    assert config.script is not None
    parent = zygote.current
    is_fork = parent is not None
    gate = ScriptGate(report, config.launch, run.run_id, place)
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
    script = config.script
    give_input(place.local_rank)
    end = _watched(run, place, report)
    _step_aside(script, gate)
    if place.local_rank == 0:
        gate.at_meeting = _learning(script, report)
    sys.argv = [script.path, *script.args]
    code, has_failed = _execute(script, report.events, place.rank, end)
    gate.at_meeting()
    if code == 0 and not has_failed:  # else its memory says nothing about other ranks
        gate.leave()
    if is_fork or has_failed:
        _end(code, has_failed=has_failed)
    return code


def _watched(run: RunDir, place: Any, report: Reporter) -> ScriptEnd:
    """Start the watchdog of this rank, while modules of ours can still be imported."""
    from ranks.main_thread import is_foreign
    from ranks.watchdog import watch_script

    return ScriptEnd(watch_script(run, place.rank, place.attempt, report.line), is_foreign)


def _learning(script: ScriptConfig, report: Reporter) -> Callable[[], None]:
    """Return what notes the imports of this rank for the next start."""
    watch = Watch(script)

    def keep() -> None:
        if line := watch.keep():
            report.line(line)

    return keep


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


def _step_aside(script: ScriptConfig, gate: ScriptGate) -> None:
    """Remove from this process everything that a script could find in place of its own.

    Its modules may have the same names as ours. Nothing of ours can be imported from here on.
    """
    set_variables(json.loads(os.environ.pop("AIRLOCK_SCRIPT_ENVIRONMENT")))
    ours = {
        name
        for name, module in sys.modules.items()
        if getattr(module, "__file__", None) == str(ROOT / name / "__init__.py")
    }
    for name in list(sys.modules):
        if name.partition(".")[0] in ours:
            del sys.modules[name]
    first = str(Path.cwd() if script.module else Path(script.path).resolve().parent)
    own_folder = [] if os.environ.get("PYTHONSAFEPATH") else [first]
    sys.path[:] = [*own_folder, *(entry for entry in sys.path if entry != str(ROOT)), str(_API)]
    _offer_gate(gate)


def _offer_gate(gate: ScriptGate) -> None:
    """Connect `import airlock` to the gate, unless the script has a module of that name."""
    spec = importlib.util.find_spec("airlock")
    if spec is not None and spec.origin == str(_API / "airlock.py"):
        importlib.import_module("airlock")._gate = gate.again  # type: ignore[attr-defined]


def _execute(
    script: ScriptConfig, events: EventWriter, rank: int, end: ScriptEnd
) -> tuple[int, bool]:
    """Run the script as `__main__`; return its exit code, and whether an exception ended it."""
    try:
        with events.span("script"):
            main, program = _as_module(script) if script.module else _as_file(script)
            sys.modules["__main__"] = main
            with end.keeping_frame(program):
                exec(program, main.__dict__)  # noqa: S102 - running it is the purpose
        end.ended()
    except SystemExit as error:
        code = _exit_status(error)
        end.raised(error, code)
        if code != 0:
            # Reported now: others may fail because of it, and be seen to end before this one.
            events.emit("error", "rank.exit", failed_rank=rank, exitcode=code, signal=None)
        return code, False
    except BaseException as error:  # noqa: BLE001 - the launcher has to hear of it
        code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        hide_own_frames(error)
        end.raised(error, code)
        tell_failure(events, error)
        sys.excepthook(type(error), error, error.__traceback__)
        return code, True
    return 0, False


def _as_file(script: ScriptConfig) -> tuple[ModuleType, CodeType]:
    """Return the module `__main__` and the program of a script, as `python SCRIPT` has them."""
    main: Any = ModuleType("__main__")
    main.__file__ = script.path
    main.__builtins__ = builtins
    main.__loader__ = SourceFileLoader("__main__", script.path)
    main.__cached__ = None
    source = Path(script.path).read_bytes()
    return main, compile(source, script.path, "exec", dont_inherit=True)


def _as_module(script: ScriptConfig) -> tuple[ModuleType, CodeType]:
    """Return the same as `python -m MODULE` has them; imports the packages that contain it.

    Raises ImportError if the module is not where the launcher found it.
    """
    spec = importlib.util.find_spec(script.module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{script.module}.__main__")
    loader: Any = None if spec is None else spec.loader
    program = None if loader is None else loader.get_code(loader.name)
    if spec is None or program is None:
        raise ImportError(f"there is no code for the module {script.module}")
    main: Any = importlib.util.module_from_spec(spec)
    main.__name__, main.__builtins__ = "__main__", builtins
    sys.argv[0] = str(spec.origin)
    return main, program


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
