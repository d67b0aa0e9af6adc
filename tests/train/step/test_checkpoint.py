"""Checkpoints: training resumes from one as if it had never stopped; a torn one never counts."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from ranks.group import Alone, Ranks
from rundir.checkpoints import (
    MARKER,
    best_checkpoint,
    checkpoint_name,
    complete_checkpoints,
    held_out_loss,
    incomplete_checkpoints,
    note_evaluation,
)
from rundir.config import TrainConfig
from rundir.errors import UserError
from train.step import checkpoint
from train.update.optimizer import make_optimizer

ALONE = Alone(torch.device("cpu"))


class Training:
    """A small model with dropout: its steps depend on weights, optimizer and random state."""

    def __init__(self, *, width: int = 8, seed: int = 0, in_8_bits: bool = False) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(4, width), nn.Dropout(0.5), nn.Linear(width, width), nn.Linear(width, 1)
        )
        self.model[2].requires_grad_(False)  # frozen: not in a checkpoint
        settings = TrainConfig(
            learning_rate=0.1,
            weight_decay=0.01,
            optimizer="adamw-8bit" if in_8_bits else "adamw",
        )
        self.optimizer = make_optimizer(self.model, settings)

    def steps(self, number: int) -> list[float]:
        losses = []
        for _ in range(number):
            loss: Any = self.model(torch.rand(16, 4)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def save(self, folder: Path, step: int, ranks: Ranks = ALONE, *, keep: int = 2) -> Path:
        return checkpoint.save(folder, step, self.model, self.optimizer, ranks, keep=keep)

    def load(self, path: Path, ranks: Ranks = ALONE) -> int:
        return checkpoint.load(path, self.model, self.optimizer, ranks)


def steps_in(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in complete_checkpoints(folder)]


@pytest.mark.parametrize("kind", [{}, {"in_8_bits": True, "width": 2048}])
def test_training_goes_on_as_if_it_had_never_stopped(
    tmp_path: Path, ranks: Ranks, kind: dict[str, Any]
) -> None:
    first = Training(**kind)
    first.steps(3)
    path = first.save(tmp_path, 3, ranks)
    assert path == tmp_path / checkpoint_name(3)
    went_on = first.steps(4)

    second = Training(**kind)  # the same frozen weights
    second.steps(1)
    assert second.load(path, ranks) == 3
    assert second.steps(4) == went_on
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_states_are_those_of_their_parameters_though_others_decay_together(
    tmp_path: Path,
) -> None:
    """Which weights decay may change between versions."""
    first, second = Training(), Training()
    trained = [p for p in first.model.parameters() if p.requires_grad]
    first.optimizer = torch.optim.AdamW(trained[::-1], lr=0.1)
    first.steps(3)
    second.load(first.save(tmp_path, 3))
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        before, after = first.optimizer.state[one], second.optimizer.state[other]
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)


def test_only_what_is_trained_is_saved(tmp_path: Path) -> None:
    path = Training().save(tmp_path, 1)
    assert set(load_file(path / "model.safetensors")) == {
        "0.weight",
        "0.bias",
        "3.weight",
        "3.bias",
    }
    assert (path / MARKER).is_file()


@pytest.mark.parametrize(("keep", "kept"), [(1, [50]), (2, [40, 50]), (9, [10, 20, 30, 40, 50])])
def test_the_last_ones_are_kept_and_a_torn_one_neither_counts_nor_is_counted(
    tmp_path: Path, keep: int, kept: list[int]
) -> None:
    (tmp_path / checkpoint_name(15)).mkdir()
    training = Training()
    for step in (10, 20, 30, 40, 50):
        training.save(tmp_path, step, keep=keep)
    assert steps_in(tmp_path) == kept
    assert len(list(tmp_path.iterdir())) == len(kept) + 1


def other_layers() -> Training:
    other = Training()
    other.model.append(nn.Linear(1, 1))
    return other


def test_the_best_is_kept_beside_the_last_ones(tmp_path: Path) -> None:
    training, losses = Training(), {10: 3.0, 20: 1.0, 30: 2.0, 40: 1.5}
    for step in (10, 20, 30, 40, 50):
        path = training.save(tmp_path, step, keep=2)
        if step in losses:
            note_evaluation(path, losses[step])
    assert steps_in(tmp_path) == [20, 40, 50]
    assert best_checkpoint(tmp_path) == tmp_path / checkpoint_name(20)
    (tmp_path / checkpoint_name(20) / "evaluation.json").write_text("{")  # torn
    assert best_checkpoint(tmp_path) == tmp_path / checkpoint_name(40)
    training.save(tmp_path, 60, keep=1)
    assert steps_in(tmp_path) == [40, 60]


def test_one_without_its_marker_is_replaced_by_the_one_of_that_step(tmp_path: Path) -> None:
    (tmp_path / checkpoint_name(10)).mkdir()
    assert incomplete_checkpoints(tmp_path) == [tmp_path / checkpoint_name(10)]
    path = Training().save(tmp_path, 10)
    assert steps_in(tmp_path) == [10]
    assert Training().load(path) == 10


MODELS: dict[str, Callable[[], Training]] = {
    "one": Training,
    "other layers": other_layers,
    "wider": lambda: Training(width=16),
    "of width 1": lambda: Training(width=1),
}


def saved_by_a_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose tensors carry the tag of a GPU, as those of rank 7 of 8 do."""
    training = Training()
    training.steps(3)
    path = training.save(folder, 3)
    (file,) = path.glob("optimizer-*.pt")
    states = torch.load(file, weights_only=True)
    tagged = (0, lambda _storage: "cuda:7", lambda *_: None)
    with monkeypatch.context() as patched:
        registered = torch.serialization._package_registry
        patched.setattr(torch.serialization, "_package_registry", [tagged, *registered])
        torch.save(states, file)
    return path


def test_states_of_another_ranks_gpu_are_loaded_without_that_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved_by_a_gpu(tmp_path, monkeypatch)
    (states,) = path.glob("optimizer-*.pt")
    with pytest.raises(RuntimeError, match=r"deserialize object on.*CUDA"):  # the tags are there
        torch.load(states, weights_only=True)
    training = Training()
    assert training.load(path) == 3
    found = [value for one in training.optimizer.state.values() for value in one.values()]
    assert {value.device.type for value in found if isinstance(value, torch.Tensor)} == {"cpu"}


def test_weights_are_never_there_a_second_time_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Training(width=512).save(tmp_path, 1)
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0
    copy = torch.Tensor.copy_

    def watched(self: torch.Tensor, other: torch.Tensor, *rest: Any) -> torch.Tensor:
        nonlocal most
        alive.append(weakref.ref(other))
        most = max(most, sum(one() is not None for one in alive))
        return copy(self, other, *rest)

    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    Training(width=512).load(path)
    assert len(alive) >= 4
    assert most == 1


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [("one", name) for name in list(MODELS)[1:]] + [(name, "one") for name in list(MODELS)[1:]],
)
def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(
    tmp_path: Path, saved: str, loaded: str
) -> None:
    path, training = MODELS[saved]().save(tmp_path, 1), MODELS[loaded]()
    before = [parameter.clone() for parameter in training.model.parameters()]
    with pytest.raises(UserError, match="does not fit this model") as raised:
        training.load(path)
    assert "train.method" in raised.value.do
    for one, parameter in zip(before, training.model.parameters(), strict=True):
        assert torch.equal(one, parameter)


def test_random_states_of_another_number_of_ranks_are_left_alone(tmp_path: Path) -> None:
    training = Training()
    path = training.save(tmp_path, 1)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    training.load(path, Ranks(rank=0, world_size=2, device=ALONE.device, control=None))
    assert torch.equal(torch.rand(3), expected)
    training.load(path)
    assert not torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("room_bytes", [0, 4096, 12_288, 20_480])
def test_a_full_disk_is_an_error_and_leaves_the_checkpoints_that_were_there(
    small_disk: Path, room_bytes: int
) -> None:
    training = Training(width=256)
    path = training.save(small_disk, 1)
    with (small_disk / "filling").open("wb") as file:
        file.write(b"0" * (shutil.disk_usage(small_disk).free - room_bytes))
    went_on = training.steps(2)
    # Detected beforehand it is an OSError; half way through it is whatever the writer raises.
    with pytest.raises(OSError if room_bytes < 8192 else Exception, match=r"."):
        training.save(small_disk, 3)
    assert steps_in(small_disk) == [1]
    assert sorted(file.name for file in small_disk.iterdir()) == ["filling", path.name]
    again = Training(width=256)
    assert again.load(path) == 1
    assert again.steps(2) == went_on


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    for step, loss in ((2, 1.0), (4, float("nan")), (6, 1.0), (8, float("-inf"))):
        folder = tmp_path / checkpoint_name(step)
        folder.mkdir()
        (folder / "COMPLETE").touch()
        note_evaluation(folder, loss)
    assert held_out_loss(tmp_path / checkpoint_name(4)) is None
    assert best_checkpoint(tmp_path) == tmp_path / checkpoint_name(6)  # of equal ones the latest
