"""Resource limits of a rank, set before anything heavy is imported."""

from __future__ import annotations

import resource

from launch.memory import GIB
from rundir.config import LimitsConfig
from rundir.errors import UserError


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


def _soft(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
