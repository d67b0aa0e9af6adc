"""Shared objects in place of the NVIDIA driver's, for machines without one."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def nvml(folder: Path) -> dict[str, str]:
    """Put fake_nvml.c, compiled, into `folder`; return the environment in which it is found."""
    (folder / "libnvidia-ml.so.1").write_bytes(_compiled("fake_nvml.c"))
    return {"LD_LIBRARY_PATH": str(folder)}


def cuda(folder: Path) -> dict[str, str]:
    """Put fake_cuda.c, compiled, into `folder`; return the environment in which it is found."""
    (folder / "libcuda.so.1").write_bytes(_compiled("fake_cuda.c"))
    return {"LD_LIBRARY_PATH": str(folder)}


@functools.cache
def _compiled(source: str) -> bytes:
    """Return the shared object made of a file of this folder, once for all tests."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        library, file = Path(folder) / "library.so", Path(__file__).with_name(source)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, file], check=True)
        return library.read_bytes()
