"""The environment of the ranks: every variable with its value, source and reason.

Includes the user's variables that are not passed on to them (launch/config/leftover_variables.py).
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launch.config.leftover_variables import Leftover, find_leftovers, find_slow_settings
from machine.cores.binding import NUMA_VARIABLE
from machine.cores.cores import usable_cores
from machine.cores.numa import NOT_ASKED, Bindings
from machine.gpus.allocator import NAME as ALLOC_CONF
from machine.gpus.allocator import users_alloc_conf, with_expandable_segments
from machine.gpus.devices import Placement
from machine.processes.children import python_path
from rundir.config import LaunchConfig, RunConfig
from rundir.paths import ROOT, RunDir

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable as the ranks get it."""

    name: str
    value: str
    source: str
    reason: str


def _ours(name: str, value: str, reason: str) -> Variable:
    return Variable(name, value, "airlock", reason)


def _fixed() -> dict[str, list[Variable]]:
    """Return the variables of rank_environment.toml, by occasion."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    plain = {"value": "", "source": "airlock"}
    return {
        occasion: [Variable(name=name, **plain | row) for name, row in rows.items()]
        for occasion, rows in tomllib.loads(text).items()
    }


_FIXED = _fixed()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """The variables set for the ranks, and those of the user that do harm.

    `left_out` are not passed on. `slow` are, as some machines hang without them.
    """

    variables: list[Variable]
    left_out: list[Leftover]
    slow: list[Leftover]

    def of_child(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of a child process: the user's, with these changes."""
        gone = {leftover.name for leftover in self.left_out}
        own = {name: value for name, value in environ.items() if name not in gone}
        return own | {variable.name: variable.value for variable in self.variables}

    def with_variable(self, variable: Variable) -> RankEnvironment:
        """Return a copy with one more variable."""
        return replace(self, variables=[*self.variables, variable])

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """Return the content of environment.json."""
        return {
            "variables": [asdict(variable) for variable in self.variables],
            "not_passed_on": [asdict(leftover) for leftover in self.left_out],
        }


def rank_environment(
    config: RunConfig,
    placement: Placement,
    run: RunDir,
    environ: Mapping[str, str],
    *,
    bindings: Bindings = NOT_ASKED,
) -> RankEnvironment:
    """Return the environment of the ranks, made from the user's `environ`.

    The user's values win unless Airlock needs its own. Variables that only suit our own trainer are
    left alone for a script. Ranks with `bindings` have no more threads than cores. Raises UserError
    if the user's settings of torch's allocator are invalid.
    """
    leftovers = find_leftovers(environ, config.launch.keep_env)
    gone = {leftover.name for leftover in leftovers}
    own = {name: value for name, value in environ.items() if name not in gone}
    needed, defaults = _set_by_airlock(config, placement, run, own, bindings)
    variables = [
        *needed,
        *(_or_the_users(variable, own) for variable in defaults),
        *_allocator(environ, adds=config.script is None and placement.device == "cuda"),
    ]
    final = {variable.name: variable.value for variable in variables}
    variables += [kept for kept in _kept(own) if kept.name not in final]
    return RankEnvironment(
        variables=variables,
        # A variable that Airlock itself sets to the same value is passed on after all.
        left_out=[leftover for leftover in leftovers if final.get(leftover.name) != leftover.value],
        slow=find_slow_settings(environ, config.launch.keep_env),
    )


def _set_by_airlock(
    config: RunConfig,
    placement: Placement,
    run: RunDir,
    own: Mapping[str, str],
    bindings: Bindings,
) -> tuple[list[Variable], list[Variable]]:
    """Return the variables that ranks need, and those for which a user's value goes before."""
    threads = _threads(config.launch, placement, bindings)
    is_on_gpus, is_ours = placement.device == "cuda", config.script is None
    needed = [
        _ours("AIRLOCK_RUN_DIR", str(run.path), "where a rank finds its run"),
        _ours("PYTHONPATH", python_path(own), "the clone comes first, then the user's own"),
        *_FIXED["python"],
        *(_visible_gpus(placement) if is_ours else _for_script(config, own)),
        *(threads if config.launch.threads_per_rank else []),
        *([_numa(bindings)] if is_on_gpus or bindings.ranks else []),
    ]
    defaults = [
        *([] if config.launch.threads_per_rank else threads),
        *_shares(placement, bindings),
        *_FIXED["torch"],
        *(_FIXED["gpus"] if is_on_gpus else []),
        *(_FIXED["our_trainer"] if is_ours else []),
        *(_for_nccl(config.launch, run) if is_on_gpus else []),
    ]
    return needed, defaults


def _or_the_users(variable: Variable, own: Mapping[str, str]) -> Variable:
    """Return the variable, with the user's value if they have set one."""
    value = own.get(variable.name, "")
    if not value:
        return variable
    reason = f"as you set it (else {variable.value}: {variable.reason})"
    return replace(variable, value=value, source="environment", reason=reason)


def _kept(own: Mapping[str, str]) -> list[Variable]:
    """Return harmful variables that are passed on: as launch.keep_env asks, or with a warning."""
    named = find_leftovers(own, keep_env="")
    return [
        *(_though(variable, "environment, launch.keep_env", "kept") for variable in named),
        *(_though(setting, "environment", "passed on") for setting in find_slow_settings(own, "")),
    ]


def _though(leftover: Leftover, source: str, what: str) -> Variable:
    return Variable(leftover.name, leftover.value, source, f"{what}, though {leftover.reason}")


def _threads(launch: LaunchConfig, placement: Placement, bindings: Bindings) -> list[Variable]:
    if launch.threads_per_rank:
        count, source, why = launch.threads_per_rank, "launch.threads_per_rank", "as it says"
    else:
        cores, source = usable_cores(), "airlock"
        count = _share(placement, bindings)
        why = f"{cores.counted} for {placement.num_ranks} ranks: more threads would fight for them"
        if count == bindings.fewest_cores:
            why = f"a rank's share of its NUMA node, of {why}"
    return [Variable(name, str(count), source, why) for name in _THREADS]


def _share(placement: Placement, bindings: Bindings) -> int:
    """Return the number of cores that each rank has, at least one."""
    share = max(1, usable_cores().number // placement.num_ranks)
    return min(share, bindings.fewest_cores or share)


def _numa(bindings: Bindings) -> Variable:
    """Return the plan by which ranks bind themselves; empty with the reason if none does."""
    why = bindings.why_not or "each rank's node and cores: those that its GPU is connected to"
    return Variable(NUMA_VARIABLE, bindings.value(), "launch.numa", why)


def _shares(placement: Placement, bindings: Bindings) -> list[Variable]:
    """Return variables that limit compiler processes to a rank's share of the cores."""
    share = str(_share(placement, bindings))
    return [replace(variable, value=share) for variable in _FIXED["shares"]]


def _visible_gpus(placement: Placement) -> list[Variable]:
    if not placement.is_here:
        return []
    if placement.device == "cpu":
        return _FIXED["hidden_gpus"]
    gpus = ",".join(gpu.uuid for gpu in placement.gpus)
    why = "by UUID: numbers mean other GPUs elsewhere"
    return [_ours("CUDA_VISIBLE_DEVICES", gpus, why)]


def _for_script(config: RunConfig, environ: Mapping[str, str]) -> list[Variable]:
    own = json.dumps(_own_python(environ))
    return [
        _ours(
            "AIRLOCK_SCRIPT_ENVIRONMENT",
            own,
            "Python's variables as you have them: a rank restores them for the script",
        ),
        *(_FIXED["hidden_gpus"] if config.launch.device == "cpu" else []),
        *(_FIXED["restarted_scripts"] if config.launch.max_restarts else []),
    ]


def _own_python(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return Python's variables as the user had them.

    `launch` itself was started with the clone first on the user's PYTHONPATH.
    """
    first, _, rest = environ.get("PYTHONPATH", "").partition(os.pathsep)
    path = rest if first == str(ROOT) else environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": path or None, "PYTHONSAFEPATH": environ.get("PYTHONSAFEPATH")}


def _for_nccl(launch: LaunchConfig, run: RunDir) -> list[Variable]:
    """Return variables for NCCL and its watchdog."""
    trace = _ours(
        "TORCH_FR_DUMP_TEMP_FILE",
        f"{run.incidents}/nccl_trace_rank_",
        "a rank stuck in a collective leaves its last ones here; torch would write to ~/.cache, "
        "over those of other runs",
    )
    return [trace, *(_FIXED["little_nccl"] if launch.nccl != "default" else [])]


def _allocator(environ: Mapping[str, str], *, adds: bool) -> list[Variable]:
    """Return the settings of torch's allocator: the user's, and ours as well if `adds`."""
    users = users_alloc_conf(environ)
    conf = with_expandable_segments(users) if adds else users
    why = "less GPU memory is lost in gaps that no tensor fits in"
    if not conf:
        return []
    if not users:
        return [_ours(ALLOC_CONF, conf, why)]
    if conf == users:
        return [Variable(ALLOC_CONF, conf, "environment", "as you set it")]
    return [Variable(ALLOC_CONF, conf, "environment, airlock", f"yours, and expandable: {why}")]
