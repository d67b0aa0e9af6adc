"""The entry of a warm rank: what a fork has to put right, then the way of every rank."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import multiprocessing.util
import os
from typing import Any

from launch import zygote
from launch.parent import die_with_parent
from launch.rank import bring_up


def main() -> None:
    """Bring this rank up; torch's agent has it called in a fork of the zygote."""
    parent = zygote.current
    assert parent is not None, "a warm rank is a fork of the zygote"
    die_with_parent(parent.pid)
    # As torchrun's workers have it: Linux shares processors among sessions first (autogroups), so
    # beside other programs all ranks of one session would have the share of one.
    os.setsid()
    # As CPython itself does from 3.13 on: what was registered before the fork is the zygote's to
    # run, what this rank registers is run when it ends (multiprocessing before 3.13 forgets it).
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    # A fork of a forkserver would start one itself for every worker; a cold rank would not.
    multiprocessing.set_start_method(None, force=True)
    bring_up(_inherit)
    atexit._run_exitfuncs()


def _inherit() -> Any:
    """The zygote's model, or None where it built none.

    Raises RuntimeError when the zygote must not be forked: one that was started again by
    multiprocessing, after the first had died, has not been looked at by the agent.
    """
    parent = zygote.current
    assert parent is not None
    if parent.unfit is not None:
        raise RuntimeError(f"the zygote must not be forked: {parent.unfit}")
    gc.enable()
    for name, value in parent.variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    from train import warm

    warm.after_fork()
    return parent.model
