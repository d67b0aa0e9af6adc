"""`python -m diagnostics.basic`: are the packages, the driver and each device usable?"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diagnostics.probes.limited_addresses import limit_addresses
from diagnostics.probes.result import Findings, install_command, last_line
from diagnostics.probes.rung import rung
from launch.config.request import Request
from machine.gpus.devices import Gpu, installed_gpus, visible_gpus
from machine.gpus.nvml import driver_fault, driver_state
from rundir.errors import UserError
from rundir.finding import Figure, Finding
from rundir.units import GIB, MIB
from rundir.versions import version_of
from setup.missing import missing_packages

_SIZE = {"cpu": 512, "cuda": 2048}  # rows and columns of the matrices
_FILL_BYTES = 64 * MIB
_LOWER = "AIRLOCK_RLIMIT_AS_GIB=-1   # the limit is predicted"


@rung("basic")
def main(findings: Findings, request: Request, _timeout_s: float) -> None:
    """Check Python's packages, CUDA and every visible device, under a rank's address space limit.

    Exits with 4 if one is unfit.
    """
    findings.add(check_packages())
    with findings.reported("address space", _LOWER):
        findings.add(limit_addresses(request, os.environ))
    with findings.reported("torch", install_command()):
        import torch
    findings.add(check_cuda())
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [f"cuda:{i}" for i in range(num_gpus)] or ["cpu"]
    for device in devices:
        findings.add(check_device(device))
    findings.finish(f"torch {torch.__version__} computes on {', '.join(devices)}")


def check_packages() -> Finding:
    """Report versions, and fail if a requirement of pyproject.toml is missing or out of range."""
    missing = missing_packages(["train"])
    figures: dict[str, Figure] = {"python": platform.python_version()}
    figures |= {name: version_of(name) for name in ("torch", "transformers")}
    versions = ", ".join(f"{name} {version or 'missing'}" for name, version in figures.items())
    return Finding(
        check="packages",
        ok=not missing,
        text=f"{versions}; lacking: {', '.join(missing)}" if missing else versions,
        do=install_command(),
        figures=figures | {"missing": missing},
    )


def check_cuda() -> Finding:
    """Check that torch can use every GPU that is installed and not hidden."""
    import torch

    installed = installed_gpus()
    try:
        visible = visible_gpus(installed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except UserError as error:
        return Finding(check="cuda", ok=False, text=str(error.args[0]), do=error.do)
    num_usable = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return judge_cuda(installed, visible, torch.version.cuda, num_usable, _driver_text())


def judge_cuda(
    installed: Sequence[Gpu],
    visible: Sequence[Gpu],
    torch_cuda: str | None,
    num_usable: int,
    driver: str,
) -> Finding:
    """Judge what NVML and torch report; `torch_cuda` is None for a build without CUDA."""
    build = f"torch is built for CUDA {torch_cuda}" if torch_cuda else "torch is built without CUDA"
    text, do = f"{len(visible)} of {len(installed)} GPUs visible, {driver}, {build}", ""
    if not installed:
        text = f"no NVIDIA GPU ({driver}), {build}: training is on CPU"
    elif not visible:
        text = f"CUDA_VISIBLE_DEVICES hides all {len(installed)} GPUs: training is on CPU"
    elif torch_cuda is None:
        python = shlex.quote(sys.executable)
        do = f"{python} -m pip uninstall -y torch && {install_command()}"
    elif num_usable != len(visible):
        text += f", which reaches {num_usable} of them"
        do = "nvidia-smi   # the driver must be there and take that CUDA version; else update it"
    return Finding(
        check="cuda",
        ok=not do,
        text=text,
        do=do,
        figures={
            "num_installed": len(installed),
            "num_visible": len(visible),
            "num_usable": num_usable,
            "torch_cuda": torch_cuda,
            "driver": driver,
        },
    )


def _driver_text() -> str:
    """Describe the NVIDIA driver and the newest CUDA version it supports."""
    state, fault = driver_state(), driver_fault()
    if state is None:
        return f"no driver answers: {fault.text}" if fault else "no driver answers"
    newest = f"{state.cuda[0]}.{state.cuda[1]}" if state.cuda else "none: libcuda is not here"
    return f"driver {state.version} for CUDA up to {newest}"


def check_device(name: str) -> Finding:
    """Allocate, fill and multiply on a device, and compare the products with float64 on CPU."""
    import torch

    device = torch.device(name)
    try:
        figures = _memory(device)
        filled = torch.full((_FILL_BYTES // 4,), 7, dtype=torch.int32, device=device)
        is_right = bool((filled == 7).all())  # noqa: PLR2004
        text = f"{figures['device_name']}, {_gib(figures, 'free')} of {_gib(figures, 'total')} free"
        for dtype in (torch.float32, torch.bfloat16):
            seconds, error, limit = multiply(device, dtype)
            kind = str(dtype).removeprefix("torch.")
            figures |= {f"{kind}_matmul_s": seconds, f"{kind}_error": error}
            is_right = is_right and error <= limit
            text += f"; {kind} matmul {seconds * 1e3:.2f} ms, error {error:.1e} (limit {limit:.1e})"
    except RuntimeError as error:  # torch raises this for a device that fails or is full
        do = "nvidia-smi   # is it used by another process, or in an error state?"
        return Finding(check=name, ok=False, text=last_line(error), do=do)
    text += f"; bfloat16 {'in hardware' if figures['bf16_in_hardware'] else 'emulated: slow'}"
    return Finding(
        check=name,
        ok=is_right,
        text=text,
        figures=figures,
        do="it computes wrongly: leave this device out with CUDA_VISIBLE_DEVICES, have it tested",
    )


def multiply(device: Any, dtype: Any) -> tuple[float, float, float]:
    """Return (seconds, worst relative error, largest error explained by rounding) of one product.

    The factors are positive, so each sum has a relative error of at most n·u (Higham, Accuracy and
    Stability of Numerical Algorithms, 3.5); bfloat16 is accumulated in float32, in few partial
    sums. TensorFloat-32, which NVIDIA's containers enable, rounds both factors to 11 bits.
    """
    import torch

    size = _SIZE[device.type]

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand((size, size), generator=generator).to(dtype) for _ in range(2))
    on_device = (a.to(device), b.to(device))
    torch.matmul(*on_device)  # the first call loads kernels
    _wait_for(device)
    start = time.perf_counter()
    product = torch.matmul(*on_device)
    _wait_for(device)
    seconds = time.perf_counter() - start
    limit = size * 2.0**-24 if dtype == torch.float32 else 2.0**-7
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        limit += 2.0**-10
    return seconds, worst_error(product, a, b), limit


def worst_error(product: Any, a: Any, b: Any) -> float:
    """Return the largest relative error of `product` against a·b in float64; infinity for NaN."""
    exact = a.double() @ b.double()
    error = ((product.cpu().double() - exact) / exact).abs().nan_to_num(nan=float("inf"))
    return float(error.max())


def _wait_for(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: Any) -> dict[str, Figure]:
    """Return the name, memory and bfloat16 support of a device."""
    import psutil
    import torch

    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        with torch.cuda.device(device):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        name = torch.cuda.get_device_name(device)
    else:
        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
        bf16 = "_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        name = f"CPU ({platform.machine()})"
    return {
        "device_name": name,
        "free_bytes": free,
        "total_bytes": total,
        "bf16_in_hardware": bf16,
    }


def _gib(figures: dict[str, Figure], which: str) -> str:
    value = figures[f"{which}_bytes"]
    assert isinstance(value, int)
    return f"{value / GIB:.1f} GiB"


if __name__ == "__main__":
    main(prog_name="diagnostics.basic")
