"""Host memory by phase: who has a copy of what, for each way of starting and loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from launch.config.resolve import resolve
from launch.plan.host import Weights, host_phases, weights_of
from rundir.config import LaunchConfig, RunConfig
from rundir.units import GIB
from tests.launch.plan.made import CONFIG, FOOTPRINT, MAPPED

BASE_BYTES = 20_000_000_000  # the frozen weights of FOOTPRINT
CONVERTED = replace(MAPPED, is_converted=True)


def anonymous(
    device: str = "cuda", *, start: str = "warm", num_ranks: int = 8, weights: Weights = MAPPED
) -> dict[str, int]:
    launch = LaunchConfig(num_ranks=num_ranks, start=start)  # type: ignore[arg-type]
    phases = host_phases(FOOTPRINT, replace(CONFIG, launch=launch), device, weights)  # type: ignore[arg-type]
    return {phase.name: phase.anonymous_bytes for phase in phases}


def test_cold_ranks_import_each_for_themselves_and_warm_ones_share() -> None:
    one, eight = (anonymous(start="cold", num_ranks=num)["imports"] for num in (1, 8))
    assert (eight - one) / 7 > GIB / 5
    one, eight = (anonymous(num_ranks=num)["ranks up"] for num in (1, 8))
    assert (eight - one) / 7 < GIB / 50


def test_mapped_weights_are_no_memory_that_has_to_be_there() -> None:
    assert anonymous()["model"] < 2 * GIB
    phases = host_phases(FOOTPRINT, CONFIG, "cuda", MAPPED)
    assert [phase.mapped_bytes for phase in phases] == [0, *[FOOTPRINT.weights_bytes] * 4]


def test_a_zygote_that_converts_has_a_copy_that_all_ranks_share() -> None:
    difference = anonymous(weights=CONVERTED)["ranks up"] - anonymous()["ranks up"]
    assert BASE_BYTES - GIB < difference <= FOOTPRINT.weights_bytes


def test_cold_ranks_on_cpu_that_convert_have_a_copy_each() -> None:
    found = {
        num: anonymous("cpu", start="cold", num_ranks=num, weights=CONVERTED)["ranks up"]
        for num in (1, 2)
    }
    assert found[2] - found[1] > FOOTPRINT.weights_bytes


def test_what_an_old_pickle_takes_while_it_is_read_is_given_back() -> None:
    pickled = replace(CONVERTED, reading_bytes=7 * GIB)
    found = anonymous("cpu", start="cold", weights=pickled)
    assert found["model"] == found["ranks up"] + 7 * GIB


def test_with_broadcast_all_but_the_first_rank_on_cpu_have_a_copy() -> None:
    broadcast = replace(MAPPED, load="broadcast")
    found = {
        num: anonymous("cpu", start="imports", num_ranks=num, weights=broadcast)["ranks up"]
        for num in (1, 2, 3)
    }
    assert found[1] < 2 * GIB
    assert found[3] - found[2] > FOOTPRINT.weights_bytes


def test_on_cpu_frozen_weights_are_shared_while_training_and_random_ones_are_not() -> None:
    warm = anonymous("cpu", num_ranks=4)["training"]
    random = anonymous("cpu", start="imports", num_ranks=4, weights=replace(MAPPED, load="random"))[
        "training"
    ]
    assert random - warm > 3 * BASE_BYTES


def test_on_a_gpu_the_export_brings_the_weights_to_the_host_a_file_at_a_time() -> None:
    found = anonymous()
    assert found["saving"] - found["training"] == FOOTPRINT.weights_bytes
    large = replace(FOOTPRINT, weights_bytes=65_000_000_000)
    *_, training, saving = host_phases(large, CONFIG, "cuda", MAPPED)
    assert saving.anonymous_bytes - training.anonymous_bytes == 50_000_000_000


def tiny(*settings: str) -> RunConfig:
    config, _ = resolve("tiny", settings, {})
    return replace(config, launch=replace(config.launch, num_ranks=2))


def test_weights_are_described_as_their_files_have_them(tmp_path: Path) -> None:
    save_file({"w": torch.ones(4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert not weights_of(tiny(), tmp_path).is_converted
    converted = weights_of(tiny("model.dtype=bfloat16", "launch.start=cold"), tmp_path)
    assert converted.is_converted
    assert converted.load == "broadcast"


@pytest.mark.parametrize("load", ["auto", "broadcast", "random"])
def test_weights_that_are_not_there_yet_are_taken_to_be_good_ones(
    tmp_path: Path, load: str
) -> None:
    weights = weights_of(tiny(f"launch.load={load}"), tmp_path)
    assert weights.load == ("mmap" if load == "auto" else load)
    assert not weights.is_converted
