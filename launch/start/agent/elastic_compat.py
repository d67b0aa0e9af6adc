"""The private parts of torch's elastic agent that the agent uses or speeds up.

If a version of torch lacks the part to speed up, torch is left unchanged. tests/test_compat.py
looks for every name in `PRIVATE`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

_AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent:LocalElasticAgent"
_CONTEXTS = "torch.distributed.elastic.multiprocessing.api"
PRIVATE = (  # module:attribute; a class attribute, or one set by the class's methods
    f"{_AGENT}._start_workers",  # replaced by agent.py
    f"{_AGENT}._monitor_workers",
    f"{_AGENT}._pcontext",
    f"{_AGENT}._worker_group",
    f"{_AGENT}._remaining_restarts",
    f"{_AGENT}._start_method",
    f"{_CONTEXTS}:MultiprocessContext._pc",
    f"{_CONTEXTS}:MultiprocessContext._return_values",
    f"{_CONTEXTS}:SubprocessContext.subprocess_handlers",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous:_delay",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous:get_method_name",
    "torch.distributed.launcher.api:LocalElasticAgent",
)


def leave_no_main() -> None:
    """Remove from `__main__` what makes multiprocessing run that module again in every rank."""
    main_module = sys.modules["__main__"]
    main_module.__spec__ = None
    del main_module.__file__


def hasten_rendezvous() -> None:
    """Remove two waits from the rendezvous, so that a single-node restart costs only its ranks.

    One wait is random, up to 0.3 s, and meant for several nodes. The other, 0.2 s, comes from
    looking up the names of callers in all loaded modules, for a record that nobody reads.
    """
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    module: Any = dynamic_rendezvous
    if (delay := getattr(module, "_delay", None)) is not None:
        module._delay = lambda seconds: None if seconds == (0, 0.3) else delay(seconds)
    module.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name


def format_plainly() -> None:
    """Replace the formatter of torch's loggers with a plain one.

    Before torch's formatter shows its first traceback, it loads torch's compiler, which takes 1.5
    s: just when the ranks are to be ended and started again.
    """
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "torch":
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(plain)


def exitcodes_of(context: Any) -> list[int | None]:
    """Return the exit code of each local rank, None for one that is still running.

    torch would wait forever for a forked rank that has ended by itself with exit code 0, so such a
    rank is marked as returned.
    """
    forked = getattr(getattr(context, "_pc", None), "processes", ())
    handlers = getattr(context, "subprocess_handlers", {})
    for local_rank, process in enumerate(forked):
        if process.exitcode == 0:
            context._return_values.setdefault(local_rank, None)
    codes: list[int | None] = [process.exitcode for process in forked]
    return codes + [handlers[local_rank].proc.poll() for local_rank in sorted(handlers)]
