"""The least time of a step: what its kernels compute and move, by the peak of the GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.plan.roofline import roofline_of
from launch.plan.show import roofline_lines
from rundir.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from tests.launch.plan.made import FOOTPRINT, on_gpus

CONFIG = RunConfig(
    profile="test",
    model=ModelConfig(dtype="bfloat16"),
    data=DataConfig(max_seq_length=1000),
    train=TrainConfig(global_batch_size=8, micro_batch_size=2),
)
# On an H100 (989.5 TFLOP/s, 3.35 TB/s): 100 ms of products, 200 ms of other kernels.
MADE = replace(
    FOOTPRINT,
    matrix_flops=98_950_000_000_000,
    matrix_bytes=1_000_000,
    other_bytes=670_000_000_000,
    update_bytes=3_350_000_000,
)


def test_a_step_is_its_micro_batches_and_the_update() -> None:
    roofline = roofline_of(CONFIG, MADE, 2, "H100-80G")  # each rank: four rows, two at a time
    assert roofline is not None
    assert roofline.step_s == pytest.approx(2 * 0.3 + 0.001)
    assert roofline.tokens_per_s == pytest.approx(4000 / 0.601)


def test_products_that_wait_for_memory_take_the_time_of_their_bytes() -> None:
    roofline = roofline_of(CONFIG, replace(MADE, matrix_bytes=1_340_000_000_000), 4, "H100-80G")
    assert roofline is not None
    assert roofline.step_s == pytest.approx(0.4 + 0.2 + 0.001)


def test_nothing_is_claimed_of_a_gpu_whose_peak_is_not_known() -> None:
    assert roofline_of(CONFIG, MADE, 2, "48G") is None
    float32 = replace(CONFIG, model=ModelConfig(dtype="float32"))
    assert roofline_of(float32, MADE, 2, "V100-16G") is None  # which of the two V100 it is
    assert roofline_of(CONFIG, MADE, 2, "T4-16G") is None  # has no bfloat16


def test_a_plan_says_it_in_a_line() -> None:
    plan = on_gpus("H100-80G")
    assert roofline_lines(plan) == []  # of an answer without figures
    assert plan.as_json()["roofline"] is None
    (line,) = roofline_lines(replace(plan, config=replace(CONFIG, profile="32b"), footprint=MADE))
    assert line == (
        "a step of full rows takes at least 0.301 s, 3,322 tokens/s a GPU "
        "(an estimate, by the GPU's roofline)"
    )
