"""The room on a disk that a run will need, counted from the shape of its model."""

from __future__ import annotations

import pytest

from launch.checks.sizes import model_size
from launch.checks.storage import checkpoints_bytes
from launch.config.resolve import resolve


@pytest.mark.parametrize(
    ("profile", "num_parameters", "num_adapters"),
    [
        ("tiny", 821_120, 155_648),
        ("14b", 14_770_033_664, 68_812_800),
        ("32b", 32_763_876_352, 134_217_728),
    ],
)
def test_models_are_counted_to_the_last_parameter(
    profile: str, num_parameters: int, num_adapters: int
) -> None:
    size = model_size(*resolve(profile, (), {}))
    assert size is not None
    assert (size.num_parameters, size.num_adapter_parameters) == (num_parameters, num_adapters)


@pytest.mark.parametrize(
    ("settings", "num_checkpoints"),
    [
        ((), 2),
        (("train.checkpoint_every_steps=0",), 1),
        (("train.keep_checkpoints=1",), 2),
        (("train.checkpoint_every_steps=10",), 3),
        (("train.checkpoint_every_steps=300",), 2),
        (("train.checkpoint_every_steps=10", "train.eval_every_steps=10"), 4),
        (("train.max_steps=0", "train.epochs=1"), 3),
    ],
)
def test_as_many_checkpoints_are_counted_as_there_are_at_once(
    settings: tuple[str, ...], num_checkpoints: int
) -> None:
    of_weights = 821_120 * 4
    expected = num_checkpoints * 3 * of_weights + of_weights
    assert checkpoints_bytes(*resolve("tiny", settings, {})) == expected


def test_of_another_model_than_the_profiles_nothing_is_said() -> None:
    assert checkpoints_bytes(*resolve("32b", ("model.path=other/model",), {})) == 0
