"""Alternatives that would fit: traced, the cheapest first, as commands."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from launch.config.request import Request
from launch.config.resolve import resolve
from launch.plan.changes import groups_of
from launch.plan.fit import Fit
from launch.plan.instead import what_fits_instead
from launch.plan.plan import Plan
from launch.plan.planning import make_plan
from launch.plan.question import question_of
from launch.plan.target import Target, with_ranks
from launch.plan.tracer import Tracer
from machine.processes.signals import Signals
from rundir.config import LaunchConfig, ModelConfig, TrainConfig
from tests.launch.plan.made import CONFIG, FULL, host_of, on_gpus


def settings_of(plan: Plan) -> list[list[dict[str, Any]]]:
    return [
        [{**change.settings, **change.options} for change in group]
        for group in groups_of(plan, [], {})
    ]


def test_a_smaller_micro_batch_comes_before_recomputing_and_that_before_shorter_samples() -> None:
    config = replace(CONFIG, train=TrainConfig(micro_batch_size=4, global_batch_size=32))
    first, second, third, *_ = settings_of(replace(on_gpus("24G"), config=config))
    assert first == [{"train.micro_batch_size": "2"}, {"train.micro_batch_size": "1"}]
    assert second == [{"model.gradient_checkpointing": "true"}]
    assert third == [{"train.micro_batch_size": "1", "model.gradient_checkpointing": "true"}]


def test_what_is_so_already_is_not_proposed() -> None:
    config = replace(CONFIG, model=ModelConfig(gradient_checkpointing=True))
    keys = {
        key
        for group in settings_of(replace(on_gpus("24G"), config=config))
        for one in group
        for key in one
    }
    four_bits = {"train.method", "launch.start"} if find_spec("bitsandbytes") else set()
    assert keys == {"data.max_seq_length", "profile"} | four_bits


def test_where_the_weights_alone_are_too_much_smaller_steps_are_not_tried() -> None:
    plan = replace(on_gpus("V100-16G"), config=FULL)
    keys = [sorted(one) for group in settings_of(plan) for one in group]
    assert keys[:2] == [["train.shard_optimizer"], ["train.method"]]
    assert ["data.max_seq_length"] not in keys


def test_states_are_shared_only_where_there_are_some_and_others_to_share_them_with() -> None:
    shared = {"train.shard_optimizer": "true"}
    alone = replace(FULL, launch=LaunchConfig(num_ranks=1))
    is_so = replace(FULL, train=replace(FULL.train, shard_optimizer=True))
    in_8_bits = replace(FULL, train=replace(FULL.train, optimizer="adamw-8bit"))
    for config, is_proposed in (
        (FULL, True),
        (CONFIG, False),
        (alone, False),
        (is_so, False),
        (in_8_bits, False),
    ):
        found = settings_of(replace(on_gpus("H100"), config=config))
        assert ([shared] in found) is is_proposed


def test_for_a_host_that_is_too_small_a_warm_start_is_the_first_and_fewer_ranks_come_late() -> None:
    plan = on_gpus("H100", is_here=True, host_gib=1)
    cold = replace(CONFIG, launch=LaunchConfig(num_ranks=8, start="cold"))
    found = settings_of(replace(plan, config=cold))
    assert found[0] == [{"launch.start": "warm"}]
    assert found[-2] == [{"num_gpus": 4}, {"num_gpus": 2}, {"num_gpus": 1}]


def traced(gib: float, *settings: str, environ: dict[str, str]) -> tuple[Plan, Request]:
    """Return the plan of tiny on a CPU host with that much memory."""
    request = Request(profile="tiny", settings=settings)
    config = with_ranks(resolve("tiny", settings, {})[0], 2)
    target = Target(device="cpu", num_ranks=2, source="a test", gpu=None, is_here=True)
    (footprint,) = Tracer([question_of(config, "cpu")], environ).wait(Signals())
    return make_plan(config, target, footprint, host_of(gib)), request


@pytest.mark.long  # tests/launch/plan/test_command.py types one of them
def test_what_is_proposed_fits_and_can_be_typed(environ: dict[str, str]) -> None:
    settings = ("train.micro_batch_size=2048", "train.global_batch_size=4096")
    plan, request = traced(16, *settings, environ=environ)
    assert plan.verdict is Fit.DOES_NOT_FIT
    found = what_fits_instead(plan, request, environ, Signals())
    assert found[0].command.startswith("./start.sh tiny --set train.global_batch_size=4096 --set ")
    changed = found[0].command.split("--set ")[-1]
    assert changed.startswith("train.micro_batch_size=")
    again, _ = traced(16, settings[1], changed, environ=environ)
    assert again.verdict is Fit.FITS
    size = int(changed.partition("=")[2])
    twice, _ = traced(16, settings[1], f"train.micro_batch_size={2 * size}", environ=environ)
    assert twice.verdict is not Fit.FITS


@pytest.mark.long
def test_a_host_too_small_for_anything_is_told_so(environ: dict[str, str]) -> None:
    smallest = ("train.micro_batch_size=1", "model.gradient_checkpointing=true")
    plan, request = traced(0.1, *smallest, "train.method=lora", environ=environ)
    assert plan.verdict is Fit.DOES_NOT_FIT
    assert what_fits_instead(plan, request, environ, Signals()) == []
