"""The plan's benchmark: real trainings take what was predicted, and the claims can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.plan import CASES, Compared, claims, compare, gpu_case


def assert_close(found: Compared) -> None:
    assert abs(found.peak_error) < 0.05, found
    assert abs(found.above_error) < 0.05, found


@pytest.mark.long
@pytest.mark.parametrize("name", list(CASES))
def test_real_trainings_take_the_memory_that_was_predicted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path))
    assert_close(compare(CASES[name]))


@pytest.mark.gpu
@pytest.mark.long
def test_14b_takes_the_memory_on_a_gpu_that_was_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.mem_get_info()[0] < 45 * 1024**3:
        pytest.skip("14B with LoRA takes 45 GiB of a GPU")
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path))
    assert_close(compare(gpu_case()))


def test_an_error_is_of_what_was_measured() -> None:
    found = Compared(
        predicted_peak_bytes=1100,
        measured_peak_bytes=1000,
        predicted_held_bytes=500,
        measured_held_bytes=500,
        predict_s=0,
        peak_moment="loss",
    )
    assert found.peak_error == pytest.approx(0.1)
    assert found.above_error == pytest.approx(0.2)
    values = claims({"a": found})
    assert [value["holds"] for value in values.values()] == [False, False]
