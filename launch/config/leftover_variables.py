"""Harmful leftover variables: set for debugging, by an old script or by another launcher.

A run reports those it finds. It does not pass them on, unless `launch.keep_env` names them; but
those that a machine may need, as its GPUs cannot reach each other without, are passed on with a
warning. The table below is also in docs/configuration.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from machine.gpus.allocator import OLD_NAME as OLD_ALLOC_CONF
from rundir.errors import UserError

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LeftoverRule:
    """A rule: variable names (`*` matches any ending), their harmful values, and the harm."""

    names: tuple[str, ...]
    values: str
    is_harmful: Callable[[str], bool]
    why: str
    can_keep: bool = True
    may_be_needed: bool = False  # passed on, with a warning

    def covers(self, name: str) -> bool:
        """Return whether the rule applies to the variable `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.names)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A variable of the user's environment that does harm, and why."""

    name: str
    value: str
    reason: str


def _is_on(value: str) -> bool:
    return value.strip().casefold() not in ("", "0", "n", "no", "f", "false", "off")


def _is_off(value: str) -> bool:
    return bool(value.strip()) and not _is_on(value)


def _is_any(_value: str) -> bool:
    return True


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().casefold() in values


def _below(limit: int) -> Callable[[str], bool]:
    """Return a test for whole numbers below `limit`; to NCCL a negative one means "not set"."""
    return lambda value: value.strip().isdecimal() and int(value) < limit


def _bad_num_threads(value: str) -> bool:
    """Return whether a number of threads is too low or one that NCCL would change.

    NCCL wants whole warps of 32, at least 64 threads (src/graph/tuning.cc).
    """
    is_number = value.strip().isdecimal()
    return is_number and (int(value) % 32 != 0 or int(value) < 256)  # noqa: PLR2004 - the lowest default


RULES = (
    LeftoverRule(
        (
            "RANK",
            "LOCAL_RANK",
            "GROUP_RANK",
            "ROLE_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "GROUP_WORLD_SIZE",
            "ROLE_WORLD_SIZE",
            "ROLE_NAME",
            "MASTER_ADDR",
            "MASTER_PORT",
            "PYTHON_EXEC",
            "PET_*",
            "TORCHELASTIC_*",
        ),
        "any",
        _is_any,
        "another launcher's; torchrun would take them for its own, and sets what ranks need",
        can_keep=False,
    ),
    LeftoverRule(
        ("NCCL_IB_DISABLE",),
        "on",
        _is_on,
        "between nodes NCCL falls back from InfiniBand to TCP, many times slower",
        may_be_needed=True,
    ),
    LeftoverRule(
        ("NCCL_SOCKET_IFNAME",),
        "`lo`",
        _one_of("lo", "=lo"),
        "the loopback device reaches no other node: the ranks wait for each other in vain",
    ),
    LeftoverRule(
        ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
        "on",
        _is_on,
        "GPUs of a node exchange data by a detour; needed only where a collective hangs without",
        may_be_needed=True,
    ),
    LeftoverRule(
        ("NCCL_P2P_LEVEL",),
        "all but `SYS`",
        lambda value: not _one_of("", "sys")(value),
        "GPUs farther apart than this exchange data through host memory, though they could do so "
        "directly; needed only where a collective hangs without",
        may_be_needed=True,
    ),
    LeftoverRule(
        ("NCCL_DEBUG",),
        "`INFO`, `TRACE`",
        _one_of("info", "trace"),
        "every rank's log fills with NCCL's own lines",
        may_be_needed=True,
    ),
    LeftoverRule(
        ("NCCL_NTHREADS",),
        "below 256, or not a multiple of 32",
        _bad_num_threads,
        "few threads slow every collective; NCCL makes 64 of what is less, and the most it can "
        "have of what is not a multiple of 32",
    ),
    LeftoverRule(
        ("NCCL_BUFFSIZE",),
        "below 4 MiB",
        _below(4 * _MIB),
        "smaller buffers than NCCL's own slow every collective; launch.nccl=low-memory, if meant",
    ),
    LeftoverRule(
        ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"),
        "below 4",
        _below(4),
        "few channels slow every collective; launch.nccl=low-memory, if meant",
    ),
    LeftoverRule(
        ("TORCH_DISTRIBUTED_DEBUG",),
        "`DETAIL`",
        _one_of("detail"),
        "every collective is checked by another one first, and NCCL is not told a rank's GPU "
        "(pytorch#178977)",
    ),
    LeftoverRule(
        ("CUDA_LAUNCH_BLOCKING",),
        "on",
        _is_on,
        "the CPU waits for each kernel before it starts the next",
    ),
    LeftoverRule(
        ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"),
        "on",
        _is_on,
        "the CPU waits for each collective, and nothing watches for one that hangs",
    ),
    LeftoverRule(
        (
            "TORCH_NCCL_ASYNC_ERROR_HANDLING",
            "NCCL_ASYNC_ERROR_HANDLING",
            "TORCH_NCCL_ENABLE_MONITORING",
        ),
        "off",
        _is_off,
        "a rank stuck in a collective would stay so for ever, without a report",
    ),
    LeftoverRule(
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_TRACE_CPP_STACK"),
        "any",
        _is_any,
        "old names; torch now has TORCH_FR_BUFFER_SIZE and TORCH_FR_CPP_STACK",
    ),
    LeftoverRule(
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",),
        "any",
        _is_any,
        "an old name; torch now has TORCH_FR_DUMP_TEMP_FILE",
    ),
    LeftoverRule(
        (OLD_ALLOC_CONF,),
        "any",
        _is_any,
        "an old name; its value is passed on as PYTORCH_ALLOC_CONF",
        can_keep=False,
    ),
)


def find_leftovers(environ: Mapping[str, str], keep_env: str) -> list[Leftover]:
    """Return the variables of `environ` not passed on, in table order, without those kept."""
    keep = names_in(keep_env)
    return [
        leftover for leftover in _found(environ, may_be_needed=False) if leftover.name not in keep
    ]


def find_slow_settings(environ: Mapping[str, str], keep_env: str) -> list[Leftover]:
    """Return the variables of `environ` passed on with a warning; those kept need none."""
    keep = names_in(keep_env)
    return [
        leftover for leftover in _found(environ, may_be_needed=True) if leftover.name not in keep
    ]


def _found(environ: Mapping[str, str], *, may_be_needed: bool) -> Iterator[Leftover]:
    for rule in RULES:
        if rule.may_be_needed is may_be_needed:
            for name, value in sorted(environ.items()):
                if rule.covers(name) and rule.is_harmful(value):
                    yield Leftover(name, value, rule.why)


def names_in(keep_env: str) -> list[str]:
    """Return the variable names in `launch.keep_env`, which are separated by commas."""
    return [name.strip() for name in keep_env.split(",") if name.strip()]


def check_keep_env(keep_env: str, environ: Iterable[str]) -> None:
    """Raise UserError for a mistyped name, or one that cannot be kept.

    A name that is not set is valid if the table has it: a profile may serve several machines.
    """
    known = [name for rule in RULES if rule.can_keep for name in rule.names]
    for name in names_in(keep_env):
        for rule in RULES:
            if rule.covers(name) and not rule.can_keep:
                raise UserError(
                    f"launch.keep_env names {name}, which cannot be kept: {rule.why}",
                    do=f"take {name} out of launch.keep_env",
                )
        if name not in known and name not in environ:
            near = difflib.get_close_matches(name, {*known, *environ}, n=1)
            raise UserError(
                f"launch.keep_env names {name}, which is not set",
                do=f"perhaps {near[0]}?" if near else f"set it, or take {name} out",
            )
