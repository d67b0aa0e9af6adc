"""The environment of the ranks: every variable with its value, where it is from, and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from launch.devices import Placement
from rundir.config import RunConfig
from rundir.paths import ROOT, RunDir

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable as the ranks get it."""

    name: str
    value: str
    source: str
    reason: str


def rank_variables(
    config: RunConfig, placement: Placement, run: RunDir, environ: Mapping[str, str]
) -> list[Variable]:
    """What is set for the ranks. A value that the user set wins, except where Airlock needs it."""
    cores = len(os.sched_getaffinity(0))
    asked = config.launch.threads_per_rank
    count = str(asked or max(1, cores // placement.num_ranks))
    share = f"{cores} cores for {placement.num_ranks} ranks: more threads would fight for cores"
    threads = [(name, count, "launch.threads_per_rank" if asked else share) for name in _THREADS]
    defaults = [
        *([] if asked else threads),
        ("TOKENIZERS_PARALLELISM", "false", "its threads do not survive a fork"),
        ("PYTORCH_NVML_BASED_CUDA_CHECK", "1", "is_available() asks NVML and makes no context"),
        ("HF_HUB_OFFLINE", "1", "files are fetched once, before the ranks start"),
    ]
    needed = [
        ("AIRLOCK_RUN_DIR", str(run.path), "where a rank finds its configuration"),
        ("PYTHONPATH", _python_path(environ), "the clone comes first, then the user's own"),
        ("PYTHONSAFEPATH", "1", "a train.py in the working directory must not shadow ours"),
        ("PYTHONUNBUFFERED", "1", "a rank that is killed has its last words in its log"),
    ]
    if placement.device == "cuda":
        gpus = ",".join(gpu.uuid for gpu in placement.gpus)
        needed.append(("CUDA_VISIBLE_DEVICES", gpus, "by UUID: numbers mean other GPUs elsewhere"))
    else:
        needed.append(("CUDA_VISIBLE_DEVICES", "", "this run is on CPU"))
    needed += threads if asked else []
    variables = [Variable(name, value, "airlock", why) for name, value, why in needed]
    for name, value, why in defaults:
        own = environ.get(name, "")
        source = "environment" if own else "airlock"
        variables.append(Variable(name, own or value, source, why))
    return variables


def _python_path(environ: Mapping[str, str]) -> str:
    entries = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([str(ROOT), *(entry for entry in entries if entry != str(ROOT))])


def child_environment(variables: list[Variable], environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a child: the user's own with `variables` over it.

    What a job of another launcher left behind (RANK, MASTER_ADDR, PET_*…) is not passed on: the
    agent would take it for its own.
    """
    left_over = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                 "MASTER_PORT", "GROUP_RANK", "PYTHON_EXEC"}  # fmt: skip
    own = {
        name: value for name, value in environ.items()
        if name not in left_over and not name.startswith(("PET_", "TORCHELASTIC_"))
    }  # fmt: skip
    return own | {variable.name: variable.value for variable in variables}
