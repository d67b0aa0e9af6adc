"""What torch and multiprocessing do needlessly slowly at a start or a restart, taken away.

All of it is private to them, and a version that has none of it is left as it is.
"""

from __future__ import annotations

import logging
import sys
from typing import Any


def leave_no_main() -> None:
    """Take from `__main__` what tells multiprocessing to run that module again in every rank."""
    main_module = sys.modules["__main__"]
    main_module.__spec__ = None
    del main_module.__file__


def hasten_rendezvous() -> None:
    """Take two waits off the rendezvous, so that a restart on one node is a matter of its ranks.

    The one is random, up to 0.3 s, and has several nodes in mind. The other, 0.2 s, comes from
    looking up the names of callers, for a record that nobody reads, through all loaded modules.
    """
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    module: Any = dynamic_rendezvous
    if (delay := getattr(module, "_delay", None)) is not None:
        module._delay = lambda seconds: None if seconds == (0, 0.3) else delay(seconds)
    module.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name


def format_plainly() -> None:
    """Take torch's own formatter off its loggers.

    Before it shows the first traceback it loads torch's compiler, for 1.5 s: just when the ranks
    are to be ended and started again.
    """
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in logging.root.manager.loggerDict:
        if name.partition(".")[0] == "torch":
            for handler in logging.getLogger(name).handlers:
                handler.setFormatter(plain)
