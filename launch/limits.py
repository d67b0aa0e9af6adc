"""Resource limits of a rank, set before anything heavy is imported."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from launch.memory import GIB
from rundir.config import LimitsConfig
from rundir.errors import UserError

_OOM_SCORE = 500  # half of all memory counted on top of its own (proc(5): -1000 to 1000)


def check_limits(limits: LimitsConfig) -> None:
    """Raise UserError when the hard limit is below what `limits` asks for."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY and limits.rlimit_as_gib * GIB > hard:
        raise UserError(
            f"limits.rlimit_as_gib asks for {limits.rlimit_as_gib:g} GiB of address space; "
            f"the hard limit is {hard / GIB:.1f} GiB",
            do="raise it with `ulimit -Hv`, or set AIRLOCK_RLIMIT_AS_GIB=0",
        )


def apply_limits(limits: LimitsConfig) -> dict[str, int | None]:
    """Set this process's limits; returns them as the `limits` mark wants them.

    RLIMIT_AS counts reserved addresses, not memory in use, so it is only set when asked for.
    Open files go up to the hard limit: each rank holds a socket for every other, and shards.
    """
    if limits.rlimit_as_gib > 0:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (int(limits.rlimit_as_gib * GIB), hard))
    _, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_files, hard_files))
    return {
        "rlimit_as_bytes": _soft(resource.RLIMIT_AS),
        "rlimit_nofile": _soft(resource.RLIMIT_NOFILE),
    }


def die_before_others() -> None:
    """Have the kernel, when memory runs out, end this process rather than the launcher.

    A process may always raise its own score; one that is higher already stays so.
    """
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # a sandbox may hide it
        score.write_text(str(max(_OOM_SCORE, int(score.read_text()))))


def _soft(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
