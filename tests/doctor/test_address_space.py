"""CUDA's own out-of-memory errors: a full GPU, or a limit on the addresses that it reserves."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.logs.diagnosis import diagnose
from doctor.runs.run_folder import of_run
from tests.doctor.run_folders import Story

COUNTING = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? Error 2: out of memory"
)
AT_INIT = [
    COUNTING,
    "torch.AcceleratorError: CUDA error: out of memory",
    "RuntimeError: CUDA driver error: out of memory",
]
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB."


def story(exception: str, limit_bytes: int | None, note: str = "") -> Story:
    """Return a failed run whose ranks had that RLIMIT_AS, and one of which raised `exception`."""
    told = Story()
    for rank in (0, 1):
        told.tell(f"rank{rank}", "mark", "limits", rlimit_as_bytes=limit_bytes, rlimit_nofile=None)
    told.raises(1, exception)
    told.prints(1, note)
    told.ends()
    return told


@pytest.mark.parametrize("exception", AT_INIT)
def test_cudas_own_error_under_a_limit_is_explained_by_the_limit(exception: str) -> None:
    verdict = of_run(story(exception, 64 << 30).run)
    assert (verdict.cause, verdict.rank) == ("address-space-limit", 1)
    assert "limits.rlimit_as_gib=0" in verdict.fix


@pytest.mark.parametrize("exception", AT_INIT)
def test_cudas_own_error_is_a_full_gpu_in_a_run_without_a_limit_and_in_a_log_that_names_none(
    exception: str, tmp_path: Path
) -> None:
    assert of_run(story(exception, None).run).cause == "cuda-out-of-memory"
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{exception}\n")
    assert diagnose([str(log)]).cause == "cuda-out-of-memory"


def test_a_gpu_that_is_full_is_full_under_a_limit_too() -> None:
    full = "the GPU is full: 310 MiB are free; see `nvidia-smi`\n"
    assert of_run(story(AT_INIT[1], 64 << 30, full).run).cause == "cuda-out-of-memory"
    assert of_run(story(FULL, 64 << 30).run).cause == "cuda-out-of-memory"


@pytest.mark.parametrize(
    ("off", "fix"),
    [
        ("AIRLOCK_RLIMIT_AS_GIB=0", "limits.rlimit_as_gib=0"),
        ("`ulimit -v unlimited`", "ulimit -v unlimited"),
    ],
)
def test_the_ranks_note_names_the_limit(off: str, fix: str) -> None:
    note = (
        f"RLIMIT_AS of this process is 64.0 GiB, of which 9.1 are reserved: {off} removes the "
        "limit; CUDA reserves more addresses than GPU and host have memory\n"
    )
    verdict = of_run(story(AT_INIT[1], 64 << 30, note).run)
    assert verdict.cause == "address-space-limit"
    assert "64.0 GiB" in verdict.title
    assert fix in verdict.fix
