"""Several files as one: each has its share of every epoch, whatever ranks and steps there are."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import UserError
from rundir.paths import RunDir
from rundir.prepared import Prepared, PreparedPart, read_prepared, write_prepared
from tests.train.data.test_prepare_data import cache, model, saved_tokenizer
from train.batches.course import Course, Draw, course_of
from train.batches.epoch_order import MixedOrder
from train.batches.feed import Feed, order_of
from train.data.dataset import SampleFile
from train.evaluation.answering import spread_evenly
from train.prepare import prepare

__all__ = ["cache", "model", "saved_tokenizer"]  # fixtures


def part(num_samples: int, num_drawn: int) -> PreparedPart:
    return PreparedPart(path="", num_samples=num_samples, num_drawn=num_drawn)


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


def test_no_sample_comes_again_before_all_others_of_its_file_have_come() -> None:
    indices = drawn(EPOCH, 70)
    seen = Counter[int]()
    for index in indices:
        seen[index] += 1
    for begin, end in ((0, 10), (10, 17), (17, 20)):
        times = [seen[index] for index in range(begin, end)]
        assert max(times) - min(times) <= 1
    first = [index for index in indices if file_of(index) == 1][:7]
    assert sorted(first) == list(range(10, 17))  # over four epochs


def test_the_order_is_a_function_of_seed_and_place_alone() -> None:
    assert drawn(4, 57) == drawn(12, 19) == drawn(1, 228)
    assert drawn(4, 57) != drawn(4, 57, seed=1)
    fresh = MixedOrder(PARTS, course(4))
    assert fresh.step_indices(40) == drawn(4, 41)[-4:]  # as after a resume
    assert fresh.step_indices(3) == drawn(4, 4)[-4:]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a run folder that nothing has been written to."""
    made = RunDir(tmp_path / "run")
    for folder in (made.path, made.events):
        folder.mkdir()
    return made


def write(path: Path, prefix: str, count: int) -> None:
    rows = ({"prompt": f"{prefix}{i}", "response": "r"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def mixed(run: RunDir, model: Path, data: str, **settings: object) -> tuple[RunConfig, Prepared]:
    config = RunConfig(profile="test")
    config = replace(config, data=replace(config.data, path=data, **settings))  # type: ignore[arg-type]
    run.config.write_text(config_text(config, {}), encoding="utf-8")
    write_prepared(run, prepare(run, model, None))
    return config, read_prepared(run)


@pytest.mark.usefixtures("cache")
def test_files_are_mixed_by_weight_and_what_an_epoch_takes_is_said(
    run: RunDir, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.jsonl", "a", 20)
    write(tmp_path / "b.jsonl", "b", 10)
    _, prepared = mixed(run, model, f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl:0.3")
    said = capsys.readouterr().out
    assert "an epoch takes 20 samples of a.jsonl (1 of 20): about" in said
    assert "an epoch takes 3 samples of b.jsonl (0.3 of 10): about" in said
    assert prepared.train.num_samples == len(SampleFile(prepared.train)) == 23
    samples, tokenizer = SampleFile(prepared.train), Tokenizer.from_file(f"{model}/tokenizer.json")
    assert len(samples.lengths()) == 30
    order = order_of(samples, Course(num_rows=23, batch_size=23))
    texts = [
        tokenizer.decode(samples[index][0].tolist(), skip_special_tokens=True)
        for step in range(3)
        for index in order.step_indices(step)
    ]
    found = Counter(texts)
    assert {found[f"a{i}r"] for i in range(20)} == {3}
    assert sum(found[f"b{i}r"] for i in range(10)) == 9
    assert max(found[f"b{i}r"] for i in range(10)) == 1


@pytest.mark.usefixtures("cache")
def test_ranks_share_the_steps_of_a_mixture_however_many_they_are(
    run: RunDir, model: Path, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", "a", 9)
    write(tmp_path / "b.jsonl", "b", 4)
    config, prepared = mixed(run, model, f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl:2.5")
    config = replace(config, train=replace(config.train, global_batch_size=6, max_steps=8))
    samples = SampleFile(prepared.train)
    order = order_of(samples, course_of(config, len(samples)))
    for world in (1, 2, 3):
        for step in range(8):
            shares = Feed(samples, config, 0, world).shares(step)
            given = [i for share in shares for batch in share for row in batch for i in row]
            assert Counter(given) == Counter(order.step_indices(step))


@pytest.mark.usefixtures("cache")
def test_of_each_file_its_own_share_is_held_out_and_never_trained_on(
    run: RunDir, model: Path, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", "a", 200)
    write(tmp_path / "b.jsonl", "b", 100)
    data = f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl:2"
    _, prepared = mixed(run, model, data, eval_fraction=0.25)
    assert prepared.evaluation is not None
    held_out = SampleFile(prepared.evaluation)
    names = {held_out.texts(i)[0] for i in range(len(held_out))}
    of_file = Counter(name[0] for name in names)
    assert 30 < of_file["a"] < 70
    assert 12 < of_file["b"] < 40
    trained, tokenizer = SampleFile(prepared.train), Tokenizer.from_file(f"{model}/tokenizer.json")
    texts = [
        tokenizer.decode(trained[i][0].tolist(), skip_special_tokens=True)
        for i in range(len(trained.lengths()))
    ]
    assert not names & {text.removesuffix("r") for text in texts}
    assert len(texts) + len(held_out) == 300
    assert len(trained) == (200 - of_file["a"]) + 2 * (100 - of_file["b"])


@pytest.mark.usefixtures("cache")
def test_a_weight_of_one_file_is_its_share_of_an_epoch(
    run: RunDir, model: Path, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", "a", 8)
    _, prepared = mixed(run, model, f"{tmp_path}/a.jsonl:0.5")
    assert len(SampleFile(prepared.train)) == 4
    _, prepared = mixed(run, model, f"{tmp_path}/a.jsonl:0.001")
    assert len(SampleFile(prepared.train)) == 1  # at least


@pytest.mark.usefixtures("cache")
def test_a_small_file_of_which_nothing_is_held_out_does_not_end_a_run(
    run: RunDir, model: Path, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", "a", 300)
    write(tmp_path / "b.jsonl", "b", 2)
    data = f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl"
    _, prepared = mixed(run, model, data, eval_fraction=0.05)
    assert prepared.evaluation is not None
    with pytest.raises(UserError, match="none of 2 samples is held out"):
        mixed(run, model, f"{tmp_path}/b.jsonl", eval_fraction=0.0001)


@pytest.mark.usefixtures("cache")
def test_by_default_a_fiftieth_is_held_out_and_nothing_of_what_is_too_small_to_tell(
    run: RunDir, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.jsonl", "a", 1000)
    write(tmp_path / "b.jsonl", "b", 60)
    _, prepared = mixed(run, model, f"{tmp_path}/a.jsonl", eval_fraction=-1.0)
    assert prepared.evaluation is not None
    assert 8 <= prepared.evaluation.num_samples < 40
    assert prepared.train.num_samples + prepared.evaluation.num_samples == 1000
    _, asked = mixed(run, model, f"{tmp_path}/a.jsonl", eval_fraction=0.02)
    assert asked.evaluation == prepared.evaluation  # a resumed run may have either
    capsys.readouterr()
    _, prepared = mixed(run, model, f"{tmp_path}/b.jsonl", eval_fraction=-1.0)
    assert (prepared.train.num_samples, prepared.evaluation) == (60, None)
    said = capsys.readouterr().out
    assert "nothing is held out of 60 samples" in said
    assert "--set data.eval_fraction=0.1" in said


def test_the_samples_that_are_evaluated_are_spread_evenly() -> None:
    assert list(spread_evenly(5, 0)) == list(spread_evenly(5, 9)) == [0, 1, 2, 3, 4]
    assert list(spread_evenly(10, 4)) == [0, 2, 5, 7]
