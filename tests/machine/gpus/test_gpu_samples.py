"""Samples of GPUs: what a driver says of each, and what becomes of one that falls silent.

The driver is a fake behind the real pynvml; the last test asks a real one.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from machine.gpus.devices import Gpu, installed_gpus
from machine.gpus.gpu_samples import GpuSample, GpuSampler, Silence, sample
from tests import fake_drivers
from tests.running import python

TWO = tuple(Gpu(i, f"GPU-{i}", "NVIDIA Pretence", 80 << 30) for i in range(2))
SAMPLED = """
import json
from dataclasses import asdict
from machine.gpus.devices import Gpu
from machine.gpus.gpu_samples import sample
for i in range(2):
    print(json.dumps(asdict(sample(Gpu(i, f"GPU-{i}", "", 0)))))
"""
LONGEST_S = 30.0


def sampled(folder: Path, **env: str) -> list[dict[str, Any]]:
    text = python(SAMPLED, env=fake_drivers.nvml(folder) | env)
    return [json.loads(line) for line in text.splitlines()]


def until(sampler: GpuSampler, num: int) -> list[GpuSample | Silence]:
    """Return the first `num` answers of the sampler."""
    answers, deadline = list[GpuSample | Silence](), time.monotonic() + LONGEST_S
    while len(answers) < num and time.monotonic() < deadline:
        answers += sampler.new()
        time.sleep(0.01)
    assert len(answers) >= num
    return answers


def as_sample(gpu: Gpu) -> GpuSample:
    return GpuSample(index=gpu.index, used_bytes=1, total_bytes=2)


def test_a_sample_holds_what_the_driver_says(tmp_path: Path) -> None:
    slowed = str(0x4 | 0x8 | 0x40)
    first, second = sampled(
        tmp_path, NVML_USED_MIB_0="72908", NVML_SLOWED_0=slowed, NVML_LOST_1="15"
    )
    assert first == {
        "index": 0,
        "used_bytes": 72908 << 20,
        "total_bytes": 81559 << 20,
        "utilization_percent": 98,
        "temperature_c": 40,
        "power_w": 690.4,
        "power_limit_w": 700.0,
        "slowed_by": ["power cap", "hardware slowdown", "too hot (hardware)"],
    }
    assert second.keys() == {"index", "why"}  # a lost GPU is silent
    assert second["index"] == 1


def test_what_a_gpu_does_not_report_is_none_and_the_rest_is_there(tmp_path: Path) -> None:
    unknown_error = "999"
    first, second = sampled(tmp_path, NVML_NO_RATES_0="1", NVML_NO_POWER_0=unknown_error)
    assert first["utilization_percent"] is first["power_w"] is None
    assert (first["temperature_c"], first["power_limit_w"]) == (40, 700.0)
    assert (second["index"], second["utilization_percent"], second["slowed_by"]) == (1, 98, [])


def test_samples_come_again_and_again_until_they_are_stopped() -> None:
    sampler = GpuSampler(TWO, every_s=0.01, ask=as_sample)
    assert [answer.index for answer in until(sampler, 6)[:4]] == [0, 1, 0, 1]
    sampler.stop()
    assert sampler._thread is not None
    sampler._thread.join(LONGEST_S)
    assert not sampler._thread.is_alive()
    without_gpus = GpuSampler((), ask=as_sample)  # asks nobody
    assert without_gpus.new() == []
    assert without_gpus._thread is None


def test_a_gpu_that_is_lost_is_told_once(request: pytest.FixtureRequest) -> None:
    def ask(gpu: Gpu) -> GpuSample | Silence:
        return as_sample(gpu) if gpu.index else Silence(0, "GPU is lost")

    sampler = GpuSampler(TWO, every_s=0.01, ask=ask)
    request.addfinalizer(sampler.stop)
    answers = until(sampler, 5)
    assert [each for each in answers if isinstance(each, Silence)] == [Silence(0, "GPU is lost")]
    assert {each.index for each in answers if isinstance(each, GpuSample)} == {1}


def test_a_driver_that_hangs_delays_nobody_and_is_told_once(
    request: pytest.FixtureRequest,
) -> None:
    answers = threading.Event()
    request.addfinalizer(answers.set)

    def ask(gpu: Gpu) -> GpuSample:
        answers.wait()
        return as_sample(gpu)

    sampler = GpuSampler(TWO, every_s=0.01, silent_s=0.05, ask=ask)
    request.addfinalizer(sampler.stop)
    assert sampler.new() == []  # returns, though there is no answer yet
    (silence,) = until(sampler, 1)
    assert isinstance(silence, Silence)
    assert silence.index is None
    assert "has not answered for 0.05 s" in silence.why
    assert not any(isinstance(answer, Silence) for answer in sampler.new())
    answers.set()
    assert isinstance(until(sampler, 1)[0], GpuSample)


@pytest.mark.gpu
def test_a_real_gpu_reports_its_memory_temperature_and_load() -> None:
    for gpu in installed_gpus():
        state = sample(gpu)
        assert isinstance(state, GpuSample), state
        assert 0 <= state.used_bytes < state.total_bytes, asdict(state)
        assert state.temperature_c is None or 0 < state.temperature_c < 120
        assert state.utilization_percent is None or 0 <= state.utilization_percent <= 100
