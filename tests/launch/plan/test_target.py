"""The target of a plan, and the command that repeats it with a change."""

from __future__ import annotations

import pytest

from launch.config.request import PLAN, RUN, Request
from launch.config.resolve import resolve
from launch.plan.target import choose_target, target_of_placement
from machine.gpus.devices import Gpu, Placement
from rundir.errors import UserError
from rundir.units import GIB
from tests.conftest import HAS_GPU

TYPED = Request(
    profile="32b",
    num_gpus=4,
    data="my data.jsonl",
    settings=("train.lora_rank=8",),
    resume="latest",
)


def test_a_named_gpu_is_planned_for_although_it_is_not_here() -> None:
    config, _ = resolve("32b", [], {})
    target = choose_target(config, (4, "--num-gpus"), "h100", {})
    assert (target.device, target.num_ranks, target.is_here) == ("cuda", 4, False)
    assert target.gpu is not None
    assert target.gpu.name == "H100-80G"


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_gpus_and_a_name_there_is_no_gpu_to_compare_with() -> None:
    config, _ = resolve("32b", [], {})
    target = choose_target(config, None, None, {})
    assert (target.device, target.num_ranks, target.gpu) == ("cuda", 8, None)


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_a_profile_for_any_machine_is_planned_for_this_one() -> None:
    config, _ = resolve("tiny", [], {})
    target = choose_target(config, None, None, {})
    assert (target.device, target.num_ranks, target.is_here) == ("cpu", 2, True)


@pytest.mark.parametrize("number", [0, -1, 100_000])
def test_a_number_of_ranks_that_cannot_be_is_refused(number: int) -> None:
    config, _ = resolve("32b", [], {})
    with pytest.raises(UserError, match=f"asks for {number} ranks"):
        choose_target(config, (number, "--num-gpus"), "h100", {})


def test_of_different_gpus_the_smallest_counts_less_what_the_driver_keeps() -> None:
    gpus = tuple(Gpu(i, f"GPU-{i}", "A card", size * GIB) for i, size in enumerate((80, 40)))
    target = target_of_placement(Placement("cuda", 2, "a test", gpus))
    assert target.gpu is not None
    assert 39 * GIB < target.gpu.memory_bytes < 40 * GIB


def test_a_command_has_all_that_was_typed_and_a_change_takes_the_place_of_what_was() -> None:
    kept = "--num-gpus 4 --data 'my data.jsonl' --set train.lora_rank=8"
    command = TYPED.command(RUN, {"train.micro_batch_size": "1"})
    assert command == f"./start.sh 32b {kept} --set train.micro_batch_size=1 --resume latest"
    command = TYPED.command(PLAN, {"train.lora_rank": "4"}, num_gpus=2, profile="14b")
    changed = "--num-gpus 2 --data 'my data.jsonl' --set train.lora_rank=4"
    assert command == f"./airlock plan 14b {changed}"
