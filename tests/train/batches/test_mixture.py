"""Several files as one: each has its share of every epoch, whatever ranks and steps there are."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.paths import RunDir
from rundir.prepared import Prepared, read_prepared, write_prepared
from tests.train.batches.test_course import part
from tests.train.data.test_prepare_data import cache, model, saved_tokenizer
from train.batches.course import Course, Draw, course_of
from train.batches.epoch_order import MixedOrder
from train.batches.feed import Feed, order_of
from train.data.dataset import SampleFile
from train.evaluation.answering import spread_evenly
from train.prepare import prepare

__all__ = ["cache", "model", "saved_tokenizer"]  # fixtures


PARTS = [part(10, 10), part(7, 2), part(3, 6), part(1, 1)]
EPOCH = sum(one.num_drawn for one in PARTS)


def course(batch_size: int, seed: int = 0) -> Course:
    return Course(num_rows=EPOCH, batch_size=batch_size, draws=(Draw(seed=seed),))


def drawn(batch_size: int, num_steps: int, seed: int = 0) -> list[int]:
    order = MixedOrder(PARTS, course(batch_size, seed))
    return [index for step in range(num_steps) for index in order.step_indices(step)]


def file_of(index: int) -> int:
    ends = [10, 17, 20, 21]
    return next(number for number, end in enumerate(ends) if index < end)


def test_each_epoch_takes_of_each_file_what_its_weight_says() -> None:
    indices = drawn(EPOCH, 50)
    for epoch in range(50):
        some = indices[epoch * EPOCH : (epoch + 1) * EPOCH]
        assert Counter(map(file_of, some)) == {0: 10, 1: 2, 2: 6, 3: 1}


def test_the_order_is_a_function_of_seed_and_place_alone() -> None:
    assert drawn(4, 57) == drawn(12, 19) == drawn(1, 228)
    assert drawn(4, 57) != drawn(4, 57, seed=1)
    fresh = MixedOrder(PARTS, course(4))
    assert fresh.step_indices(40) == drawn(4, 41)[-4:]  # as after a resume
    assert fresh.step_indices(3) == drawn(4, 4)[-4:]


class Mix:
    """Prepares files of rows that are called after their file: a0, a1 and so on."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model, self._run = folder, model, RunDir(folder / "run")
        for path in (self._run.path, self._run.events):
            path.mkdir()
        self.tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")

    def __call__(self, *files: tuple[str, int, str], **settings: Any) -> Prepared:
        """Prepare files, each given by its name, number of rows, and weight as it is typed."""
        for name, count, _ in files:
            rows = ({"prompt": f"{name}{i}", "response": "r"} for i in range(count))
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (self._folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        data = ",".join(f"{self._folder}/{name}.jsonl{weight}" for name, _, weight in files)
        config = RunConfig(profile="test")
        config = replace(config, data=replace(config.data, path=data, **settings))
        self._run.config.write_text(config_text(config, {}), encoding="utf-8")
        write_prepared(self._run, prepare(self._run, self._model, None))
        return read_prepared(self._run)

    def text(self, samples: SampleFile, index: int) -> str:
        return str(self.tokenizer.decode(samples[index][0].tolist(), skip_special_tokens=True))


@pytest.fixture
def mix(tmp_path: Path, model: Path, cache: Path) -> Mix:  # noqa: ARG001 - an empty one
    return Mix(tmp_path, model)


def test_files_are_mixed_by_weight_and_what_an_epoch_takes_is_said(
    mix: Mix, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = mix(("a", 20, ""), ("b", 10, ":0.3"))
    said = capsys.readouterr().out
    assert "an epoch takes 20 samples of a.jsonl (1 of 20): about" in said
    assert "an epoch takes 3 samples of b.jsonl (0.3 of 10): about" in said
    samples = SampleFile(prepared.train)
    assert prepared.train.num_samples == len(samples) == 23
    assert len(samples.lengths()) == 30
    order = order_of(samples, Course(num_rows=23, batch_size=23))
    found = Counter(
        mix.text(samples, index) for step in range(3) for index in order.step_indices(step)
    )
    assert {found[f"a{i}r"] for i in range(20)} == {3}
    assert sum(found[f"b{i}r"] for i in range(10)) == 9
    assert max(found[f"b{i}r"] for i in range(10)) == 1


def test_ranks_share_the_steps_of_a_mixture_however_many_they_are(mix: Mix) -> None:
    samples = SampleFile(mix(("a", 9, ""), ("b", 4, ":2.5")).train)
    config = RunConfig(profile="test")
    config = replace(config, train=replace(config.train, global_batch_size=6, max_steps=8))
    order = order_of(samples, course_of(config, len(samples)))
    for world in (1, 2, 3):
        for step in range(8):
            shares = Feed(samples, config, 0, world).shares(step)
            given = [i for share in shares for batch in share for row in batch for i in row]
            assert Counter(given) == Counter(order.step_indices(step))


def test_of_each_file_its_own_share_is_held_out_and_never_trained_on(mix: Mix) -> None:
    prepared = mix(("a", 200, ""), ("b", 100, ":2"), eval_fraction=0.25)
    assert prepared.evaluation is not None
    held_out, trained = SampleFile(prepared.evaluation), SampleFile(prepared.train)
    names = {held_out.texts(i)[0] for i in range(len(held_out))}
    of_file = Counter(name[0] for name in names)
    assert 30 < of_file["a"] < 70
    assert 12 < of_file["b"] < 40
    texts = [mix.text(trained, i) for i in range(len(trained.lengths()))]
    assert not names & {text.removesuffix("r") for text in texts}
    assert len(texts) + len(held_out) == 300
    assert len(trained) == (200 - of_file["a"]) + 2 * (100 - of_file["b"])


def test_a_weight_of_one_file_is_its_share_of_an_epoch_and_at_least_one_sample(mix: Mix) -> None:
    for weight, num_samples in ((":0.5", 4), (":0.001", 1)):
        assert len(SampleFile(mix(("a", 8, weight)).train)) == num_samples


def test_a_small_file_of_which_nothing_is_held_out_does_not_end_a_run(mix: Mix) -> None:
    assert mix(("a", 300, ""), ("b", 2, ""), eval_fraction=0.05).evaluation is not None
    with pytest.raises(UserError, match="none of 2 samples is held out"):
        mix(("b", 2, ""), eval_fraction=0.0001)


def test_by_default_a_fiftieth_is_held_out_and_nothing_of_what_is_too_small_to_tell(
    mix: Mix, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = mix(("a", 1000, ""), eval_fraction=-1.0)
    assert prepared.evaluation is not None
    assert 8 <= prepared.evaluation.num_samples < 40
    assert prepared.train.num_samples + prepared.evaluation.num_samples == 1000
    asked = mix(("a", 1000, ""), eval_fraction=0.02)
    assert asked.evaluation == prepared.evaluation  # a resumed run may have either
    capsys.readouterr()
    prepared = mix(("b", 60, ""), eval_fraction=-1.0)
    assert (prepared.train.num_samples, prepared.evaluation) == (60, None)
    said = capsys.readouterr().out
    assert "nothing is held out of 60 samples" in said
    assert "--set data.eval_fraction=0.1" in said


def test_the_samples_that_are_evaluated_are_spread_evenly() -> None:
    assert list(spread_evenly(5, 0)) == list(spread_evenly(5, 9)) == [0, 1, 2, 3, 4]
    assert list(spread_evenly(10, 4)) == [0, 2, 5, 7]
