"""The profiles of multimodal models: by the plan they fit on 1, 4 and 8 GPUs of 80 GB."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from rundir.units import GIB
from tests.conftest import ROOT
from tests.launch.plan.test_command import cache, plan_of
from tests.running import Typed, User

__all__ = ["cache"]  # fixtures
# What each trains: the text model and its head, without towers.
NUM_PARAMETERS = {
    "24b-mistral": 23_572_403_200,
    "27b-gemma": 27_009_346_304,
    "27b-qwen": 26_895_998_464,
    "31b-gemma": 30_697_345_280,
}
CASES = [
    pytest.param(name, num, marks=pytest.mark.long) for name in NUM_PARAMETERS for num in (1, 4, 8)
]


def of_gpus(num: int) -> tuple[str, ...]:
    return ("--gpu", "H100-80G", "--num-gpus", str(num))


@pytest.mark.runs
@pytest.mark.parametrize(("name", "num_gpus"), CASES)
def test_it_fits_on_gpus_of_80_gb(
    typed: Typed, cache: dict[str, str], name: str, num_gpus: int
) -> None:
    plan = plan_of(typed, name, *of_gpus(num_gpus), env=cache)
    rank = plan["rank"]
    assert rank["num_parameters"] - rank["num_trainable"] == NUM_PARAMETERS[name]
    assert 40 * GIB < rank["least_bytes"] < rank["most_bytes"] < 80 * GIB
    assert (plan["gpu"]["name"], plan["gpu"]["verdict"]) == ("H100-80G", "fits")
    assert (plan["num_ranks"], plan["verdict"], plan["instead"]) == (num_gpus, "fits", None)


@pytest.mark.long
@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_the_config_of_a_checkpoint_with_its_towers_is_planned_as_the_profile(
    user: User, cache: dict[str, str], name: str
) -> None:
    from transformers import CONFIG_MAPPING

    from train.model.make_checkpoint import byte_tokenizer

    table = tomllib.loads((ROOT / "profiles" / f"{name}.toml").read_text(encoding="utf-8"))
    shape: dict[str, Any] = dict(table["architecture"])
    CONFIG_MAPPING[shape.pop("model_type")](**shape).save_pretrained(user.folder / "model")
    byte_tokenizer().save_pretrained(user.folder / "model")  # type: ignore[no-untyped-call]
    there = ("--set", f"model.path={user.folder / 'model'}", "--set", "launch.load=random")
    plan = plan_of(user.typed, name, *of_gpus(8), *there, env=cache)
    own = plan_of(user.typed, name, *of_gpus(8), env=cache)
    assert plan["verdict"] == "fits"
    assert plan["rank"]["peak_bytes"] == own["rank"]["peak_bytes"]
