"""Early import of a script's libraries: once in the zygote, or inside the gate in a cold rank."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Set
from typing import Any

from launch.start.rank.fork_safety import inspect
from launch.start.rank.learned_imports import (
    learned_of,
    libraries,
    library_of,
    mark_unsafe,
    to_import,
)
from launch.start.rank.reporter import Reporter
from launch.start.rank.script_imports import Import, ImportPlan, Setting, plan_imports
from ranks.transformers_compat import quicken
from rundir.config import ScriptConfig

# Variables that differ between ranks: a library that reads one while it loads would get the same
# value in all ranks, or none.
_OF_A_RANK = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)


class UnfitError(Exception):
    """This process must not be forked; the message says why, and what to type."""


def import_in_rank(script: ScriptConfig, report: Reporter) -> None:
    """Import in a rank's own process, where anything that fails is left to the script."""
    plan = plan_imports(script, safe_to_fork=False)
    _say_left_out(plan, report)
    with _settings_undone(plan):
        for step in plan.steps:
            _do(step, report)


def import_in_zygote(script: ScriptConfig, report: Reporter) -> None:
    """Import what every rank then inherits, and inspect the process after each import.

    Raises UnfitError for the first import that starts a thread, touches CUDA or asks for its rank.
    """
    plan = plan_imports(script, safe_to_fork=True)
    _say_left_out(plan, report)
    quicken()
    with _settings_undone(plan), _asked_for(_OF_A_RANK) as variables_read:
        for step in plan.steps:
            if isinstance(step, Setting):
                _do(step, report)
                continue
            with report.events.span("zygote.import", what=step.name):
                _do(step, report)
                if step == Import("torch"):
                    _settle_torch()
            try:
                _check(step.name, variables_read, f"--preload -{step.name} leaves it out")
            except UnfitError as error:  # nor is it to be learned from the ranks
                mark_unsafe(script, learned_of(script), library_of(step.name), str(error))
                raise
    _import_learned(script, report)


def _import_learned(script: ScriptConfig, report: Reporter) -> None:
    """Import what ranks of the last start imported for themselves."""
    learned = learned_of(script)
    if not (names := list(to_import(script, learned))):
        return
    report.line(f"IMPORT: as ranks of the last start did: {libraries(names)}")
    watched = _OF_A_RANK.union(learned.variables)
    with _asked_for(watched) as read, report.events.span("zygote.import", what="learned"):
        for name in to_import(script, learned):
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - any library's code runs here
                mark_unsafe(script, learned, library_of(name), f"{type(error).__name__}: {error}")
            try:
                _check(name, read, "the next start leaves it to the ranks")
            except UnfitError as error:
                mark_unsafe(script, learned, library_of(name), str(error))
                raise


def _settle_torch() -> None:
    import torch

    from ranks.torch_compat import import_compiler

    torch.set_num_threads(1)
    import_compiler()


def _do(step: Import | Setting, report: Reporter) -> None:
    if isinstance(step, Setting):
        os.environ[step.name] = step.value
        return
    try:
        # With members, the submodules among them are imported too, as in the statement.
        __import__(step.name, fromlist=step.members)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the script may handle any of them
        text = str(error).partition("\n")[0]
        report.line(f"IMPORT: {step.name} is left to the script: {type(error).__name__}: {text}")


def _check(name: str, variables_read: list[str], do: str) -> None:
    if variables_read:
        raise UnfitError(f"{name} asked for {variables_read[0]} when it was imported; {do}")
    reasons = inspect().why_not_to_fork
    if reasons is not None:
        raise UnfitError(f"after importing {name}, {reasons}; {do}")


def _say_left_out(plan: ImportPlan, report: Reporter) -> None:
    for name, why in plan.left_out:
        report.line(f"IMPORT: {name} is left to the script: {why}")


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set environment variables of this process, and remove those without a value."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextlib.contextmanager
def _settings_undone(plan: ImportPlan) -> Iterator[None]:
    """Restore the environment variables after the block: the script sets them itself."""
    names = {step.name for step in plan.steps if isinstance(step, Setting)}
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        set_variables(before)


@contextlib.contextmanager
def _asked_for(names: Set[str]) -> Iterator[list[str]]:
    """Yield a live list of those variables that are read within the block as they were before it.

    What a library sets itself it may read.
    """
    watched, variables_read = set(names), list[str]()
    environ_class: Any = type(os.environ)
    get, set_ = environ_class.__getitem__, environ_class.__setitem__

    def get_and_note(environ: Any, name: Any) -> Any:
        if name in watched:
            variables_read.append(name)
        return get(environ, name)

    def set_and_forget(environ: Any, name: Any, value: Any) -> None:
        watched.discard(name)
        set_(environ, name, value)

    environ_class.__getitem__, environ_class.__setitem__ = get_and_note, set_and_forget
    try:
        yield variables_read
    finally:
        environ_class.__getitem__, environ_class.__setitem__ = get, set_
