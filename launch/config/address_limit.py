"""The RLIMIT_AS of the ranks: a user's, or the predicted one, each proven by a trial.

What CUDA reserves is the driver's choice. So a predicted limit is used only if a trial process has
started CUDA under it, as a rank does, with everything else reserved that a rank could use.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping
from dataclasses import replace

from launch.config.rank_environment import Variable
from machine.memory.address_probe import LimitTrial, ProbeResult, probe
from machine.memory.address_space import NUM_POOLS, Prediction
from machine.memory.limits import RLIMIT_VARIABLE
from rundir.config import LimitsConfig
from rundir.errors import ExitCode, UserError
from rundir.units import GIB


def rank_limit(
    limits: LimitsConfig, predicted: Prediction, env: Mapping[str, str] | None = None
) -> Variable:
    """Return the tested limit of each rank, as the variable that passes it on; 0 is no limit.

    `env` is the environment of the ranks; None means this process's. Raises UserError if the user
    has set a limit that no rank can start with.
    """
    if limits.rlimit_as_gib == 0:
        return Variable(RLIMIT_VARIABLE, "0", "limits.rlimit_as_gib", "none is wanted")
    inherited, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limits.rlimit_as_gib > 0:
        limit, source = int(limits.rlimit_as_gib * GIB), "limits.rlimit_as_gib"
    elif inherited != resource.RLIM_INFINITY and inherited < predicted.most_bytes:
        limit, source = inherited, "ulimit -v"
    else:
        return _predicted_limit(predicted, env)
    trial = _trial(predicted, limit, predicted.mapped_bytes)
    outcome = probe(trial, env)
    if outcome.failure is None:
        return Variable(RLIMIT_VARIABLE, str(limit), source, _as_set(limit, outcome.cuda_skipped))
    without = probe(replace(trial, limit_bytes=None), env) if outcome.in_cuda else ProbeResult()
    if outcome.in_cuda and without.failure and not _has_hard_limit():
        untried = f"CUDA does not start without a limit either: {without.failure}"
        return Variable(RLIMIT_VARIABLE, str(limit), source, _as_set(limit, untried))
    raise _too_low(limit, source, max(predicted.least_bytes, without.peak_bytes), outcome.failure)


def _trial(predicted: Prediction, limit_bytes: int, reserved_bytes: int) -> LimitTrial:
    return LimitTrial(
        limit_bytes=limit_bytes,
        reserved_bytes=reserved_bytes,
        num_threads=predicted.num_threads,
        num_pools=NUM_POOLS if predicted.on_gpus else 0,
    )


def _predicted_limit(predicted: Prediction, env: Mapping[str, str] | None) -> Variable:
    """Return the predicted limit if a trial proves it, else none, with the reason."""
    limit = predicted.most_bytes
    trial = _trial(predicted, limit, predicted.mapped_bytes + predicted.in_use_bytes)
    outcome = probe(trial, env)
    if outcome.failure is None:
        reason = predicted.in_words()
        if outcome.cuda_skipped:
            reason += f"; not tried with CUDA: {outcome.cuda_skipped}"
        elif predicted.on_gpus:
            reason += f"; CUDA starts with it, in {outcome.peak_bytes / GIB:.1f} GiB"
        return Variable(RLIMIT_VARIABLE, str(limit), "predicted", reason)
    why = f"none: with {limit / GIB:.1f} GiB a trial process failed: {outcome.failure}"
    if outcome.in_cuda:
        without = probe(replace(trial, limit_bytes=None), env)
        why += f"; without a limit {_ending(without)}"
    return Variable(RLIMIT_VARIABLE, "0", "predicted", why)


def _ending(outcome: ProbeResult) -> str:
    if outcome.failure is None:
        return f"it started, in {outcome.peak_bytes / GIB:.1f} GiB"
    return f"it failed too: {outcome.failure}"


def _as_set(limit: int, cuda_skipped: str) -> str:
    untried = f"; not tried with CUDA: {cuda_skipped}" if cuda_skipped else ""
    return f"{limit / GIB:.1f} GiB, as set{untried}"


def _has_hard_limit() -> bool:
    """Return whether even a trial without a limit is limited."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    return hard != resource.RLIM_INFINITY


def _too_low(limit: int, source: str, needed_bytes: int, failure: str) -> UserError:
    least_gib = math.ceil((needed_bytes + GIB // 4) / GIB)
    if source == "ulimit -v":
        do = f"ulimit -v {least_gib * GIB // 1024}, or more, or unlimited"
    else:
        do = f"AIRLOCK_RLIMIT_AS_GIB={least_gib}, or more; -1 is predicted, 0 is none"
    return UserError(
        f"{source}: no rank starts with {limit / GIB:.2f} GiB of address space ({failure}); "
        f"before it trains, each reserves {needed_bytes / GIB:.2f} GiB",
        do=do,
        code=ExitCode.PREFLIGHT,
    )
