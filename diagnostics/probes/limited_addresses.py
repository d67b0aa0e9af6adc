"""The limit on a rank's address space, applied to the process that runs the checks."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Mapping

from launch.config.address_limit import rank_limit
from launch.config.job import resolve_job
from launch.config.request import Request
from launch.files.model_folder import model_folder
from machine.gpus.devices import Gpu, installed_gpus, visible_gpus
from machine.memory.address_space import predict, weight_files
from rundir.errors import UserError
from rundir.finding import Finding
from rundir.units import size_text


def limit_addresses(request: Request, environ: Mapping[str, str]) -> Finding:
    """Set RLIMIT_AS of this process to a rank's value, so that all later checks run under it.

    Raises UserError for a user-set limit that no rank can start with.
    """
    config, _ = resolve_job(request, environ)
    visible: list[Gpu] = []
    with contextlib.suppress(UserError):  # reported as a finding of its own
        visible = visible_gpus(installed_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    folder = model_folder(config)
    predicted = predict(
        weight_files(folder) if folder else [],
        environ.get("OMP_NUM_THREADS", ""),
        [gpu.memory_bytes for gpu in visible],
    )
    limit = rank_limit(config.limits, predicted, environ)
    if limit_bytes := int(limit.value):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    now, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_limited = now != resource.RLIM_INFINITY
    value = f"RLIMIT_AS {size_text(now)}" if is_limited else "no RLIMIT_AS"
    return Finding(
        check="address space",
        ok=True,
        text=f"{value}, as a rank has it ({limit.source})",
        figures={
            "rlimit_as_bytes": now if is_limited else None,
            "least_bytes": predicted.least_bytes,
        },
    )
