"""A shared object in place of the CUDA driver's (libcuda.so.1), for machines without one."""

from __future__ import annotations

from pathlib import Path

from tests.fake_nvml import compiled


def build(folder: Path) -> dict[str, str]:
    """Put fake_cuda.c, compiled, into `folder`; return the environment in which it is found."""
    (folder / "libcuda.so.1").write_bytes(compiled("fake_cuda.c"))
    return {"LD_LIBRARY_PATH": str(folder)}
