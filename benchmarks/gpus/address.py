"""The address space that CUDA reserves: VmPeak of a fresh process, which is what RLIMIT_AS limits.

The file is also the program of that process: `python -m benchmarks.gpus.address cuda|cpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpus.run import FailedError, Place
from benchmarks.gpus.training import Figures
from launch.host.address_space import predict
from launch.host.allocator import EXPANDABLE, NAME, OLD_NAME

_ALLOCATED_BYTES = 1024**3
_ONE_THREAD = "1"


def address_space(place: Place, timeout_s: float, *, expandable: bool) -> Figures:
    """Measure VmPeak after importing torch, after CUDA initialisation, and with a 1 GiB tensor.

    `limit_bytes` is the limit that a rank would get on this machine. Raises FailedError.
    """
    conf = EXPANDABLE if expandable else EXPANDABLE.replace("True", "False")
    env = place.environment("address") | {NAME: conf, "OMP_NUM_THREADS": _ONE_THREAD}
    env.pop(OLD_NAME, None)
    command = [sys.executable, "-P", "-m", __name__, place.device]
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=place.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"not done after {timeout_s:.0f} s") from error
    if done.returncode != 0:
        raise FailedError(done.stderr[-1000:])
    gpus = [] if place.gpu is None else [place.gpu.memory_bytes]
    limit = {"limit_bytes": predict([], _ONE_THREAD, gpus).most_bytes}
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found | limit


def vm_peak_bytes() -> int:
    """Return VmPeak of this process, as reported by the kernel."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in lines if line.startswith("VmPeak:"))
    return int(line.split()[1]) * 1024


def main(device: str) -> None:
    """Measure step by step, and print one JSON object as the last line."""
    import torch

    found = {"torch_bytes": vm_peak_bytes()}
    if device == "cuda":
        torch.cuda.synchronize()  # the first call, which creates a context
    found["device_bytes"] = vm_peak_bytes()
    held = torch.zeros(_ALLOCATED_BYTES, dtype=torch.uint8, device=device)
    found["allocated_bytes"] = vm_peak_bytes()
    assert held.nbytes == _ALLOCATED_BYTES
    print(json.dumps(found))  # noqa: T201
    sys.stdout.flush()
    os._exit(0)  # what libraries do at exit is irrelevant


if __name__ == "__main__":
    main(sys.argv[1])
