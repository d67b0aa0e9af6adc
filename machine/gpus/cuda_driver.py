"""The version of NVIDIA's driver, without NVML, and the build of torch that runs on it.

Standard library only, and no syntax newer than Python 3.8's: set-up asks before anything is
installed. By NVIDIA's CUDA Compatibility guide a driver runs every minor version of its CUDA.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

VERSION_FILE = Path("/proc/driver/nvidia/version")
NEEDS_DRIVER = {11: 450, 12: 525, 13: 580}  # major version of CUDA → driver, its table 1
_FIRST_ON_BLACKWELL = 570  # older drivers know no such GPU
_TIMEOUT_S = 20.0  # a driver that has just been loaded takes some seconds


def driver_version(file: Path = VERSION_FILE) -> int | None:
    """Return the driver's major version, such as 580; None without a driver that says so."""
    try:
        text = file.read_text(errors="replace")
    except OSError:  # none; or WSL, where only the tool is there
        text = f"Kernel Module {_told_by_tool()}"
    version = re.search(r"Kernel Module\D*?(?:x86_64|aarch64)?\s+(\d+)\.\d+", text)
    return int(version[1]) if version else None


def _told_by_tool() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout.decode(errors="replace")


def older_build(driver: int, cuda: int) -> str | None:
    """Return the build of torch for `driver`, as "cu126", if one for that CUDA is too new for it.

    Raises ValueError if no build runs on it.
    """
    if driver >= NEEDS_DRIVER.get(cuda, 0):
        return None
    if driver < NEEDS_DRIVER[12]:
        raise ValueError(f"the NVIDIA driver {driver} is older than {NEEDS_DRIVER[12]}")
    return "cu129" if driver >= _FIRST_ON_BLACKWELL else "cu126"
