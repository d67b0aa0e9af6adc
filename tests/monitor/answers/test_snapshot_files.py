"""Snapshots as they are found: whole, torn, of another kind, too large, being written, removed."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from monitor.answers.brief import brief_of
from monitor.answers.snapshot_files import (
    MOST_BYTES,
    datasets_of,
    raw_snapshot,
    read_snapshot,
    steps_of,
)
from monitor.http.json_api import NotFoundError
from rundir.atomic import write_text
from rundir.paths import RunDir
from tests.monitor.answers.made import example, new_run, put, snapshot

GOOD = snapshot(10, [example(0, is_right=True), example(1)])


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return new_run(tmp_path)


def test_a_snapshot_is_read_as_it_was_written(run: RunDir) -> None:
    path = put(run, 10, GOOD)
    assert raw_snapshot(run, "d", 10)[0] == path.read_bytes()
    one = read_snapshot(run, "d", 10)
    assert [row.is_right for row in one.examples] == [True, False]
    assert (one.step, one.dataset_hash, one.summary["correct"]) == (10, "h", 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no whole snapshot"),
        (json.dumps(GOOD)[:200], "no whole snapshot"),
        ("[1, 2]", "has no examples"),
        ('{"examples": {}}', "has no examples"),
        ("null", "has no examples"),
        (b"\xff\xfe\x00", "no whole snapshot"),
        ('{"examples": ' + "[" * 100_000, "nested too deep"),
        ('{"examples": [' + "9" * 5000 + "]}", "no whole snapshot"),
    ],
)
def test_a_broken_snapshot_is_told_of_and_others_are_read(
    run: RunDir, content: str | bytes, said: str
) -> None:
    put(run, 10, GOOD)
    put(run, 25, content)
    with pytest.raises(NotFoundError, match=said):
        read_snapshot(run, "d", 25)
    briefs = [brief_of(run, "d", step) for step in steps_of(run, "d")]
    assert [bool(one.error) for one in briefs] == [False, True]


def test_one_that_is_too_large_is_not_read(run: RunDir) -> None:
    path = put(run, 10, GOOD)
    with path.open("ab") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(NotFoundError, match="at most 8 MiB"):
        read_snapshot(run, "d", 10)


def test_numbers_that_are_none_and_fields_of_other_kinds_are_borne(run: RunDir) -> None:
    rows = [
        '{"example_id": 0, "loss": NaN, "similarity": Infinity, "exact_match": 1}',
        '{"example_id": 1, "loss": "nan", "similarity": "much", "exact_match": true}',
        '{"example_id": "x", "input": ["a"], "model_output": {"b": 1}, "loss": true}',
        '{"example_id": 1, "input": "a second one"}',
        '{"example_id": 7, "model_output": "half \\ud800 a pair", "loss": 1e999}',
        '"no example"',
    ]
    put(run, 10, '{"summary": 7, "cost": [], "examples": [' + ",".join(rows) + "]}")
    found = {one.example_id: one for one in read_snapshot(run, "d", 10).examples}
    assert list(found) == [0, 1, 2, 7]
    assert math.isnan(found[0].loss or 0)
    assert not found[0].is_right
    assert found[1].similarity is None
    assert found[1].is_right
    assert (found[2].input, found[2].output, found[2].loss) == ('["a"]', '{"b": 1}', None)
    assert found[7].output == "half ? a pair"
    strict = json.loads(raw_snapshot(run, "d", 10)[0], parse_constant=pytest.fail)
    assert strict["examples"][0]["loss"] == "nan"


def test_nothing_outside_of_the_run_folder_is_read(run: RunDir, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(GOOD))
    put(run, 10, GOOD)
    run.evolution("d", 25).symlink_to(secret)
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "step_00000010.json").write_text(json.dumps(GOOD))
    (run.path / "evolution/linked").symlink_to(other)
    os.mkfifo(run.evolution("d", 50))
    run.evolution("d", 100).mkdir()
    assert datasets_of(run) == ["d"]
    for step in (25, 50, 100):
        with pytest.raises(NotFoundError):
            read_snapshot(run, "d", step)
    for name in ("linked", "..", "../..", "d/../d", "", ".", "d\0", "/etc", "x" * 5000):
        with pytest.raises(NotFoundError):
            steps_of(run, name)


def test_files_of_other_names_are_no_snapshots(run: RunDir) -> None:
    path = put(run, 10, GOOD)
    for name in (
        ".step_00000025.json.ab",
        "step_25.json",
        "step_000000025.json",
        "step_٠٠٠٠٠٠٢٥.json",
    ):
        shutil.copy(path, path.parent / name)
    assert steps_of(run, "d") == [10]


def _write_on(path: Path) -> None:
    """Replace the snapshot again and again, as the trainer does."""
    for number in range(100_000):
        rows = [example(n, model_output="x" * (number % 7 + 1) * 500) for n in range(50)]
        write_text(path, json.dumps(snapshot(10, rows)), durable=False)


def test_one_that_is_being_written_is_read_whole(run: RunDir) -> None:
    path = put(run, 10, GOOD)
    writer = multiprocessing.get_context("fork").Process(target=_write_on, args=(path,))
    writer.start()
    try:
        seen = set()
        for _ in range(300):
            one = read_snapshot(run, "d", 10)
            seen.add(one.examples[0].length)
            assert len({row.length for row in one.examples[:1]}) == 1
            assert len(one.examples) in (2, 50)
        assert len(seen) > 1
    finally:
        writer.kill()  # by SIGKILL, wherever it is
        writer.join()
    assert steps_of(run, "d") == [10]
    assert len(read_snapshot(run, "d", 10).examples) == 50


def test_a_brief_is_read_anew_when_its_file_has_changed(run: RunDir) -> None:
    path = put(run, 10, GOOD)
    assert bytes(brief_of(run, "d", 10).is_right) == b"\x01\x00"
    assert brief_of(run, "d", 10) is brief_of(run, "d", 10)
    write_text(path, json.dumps(snapshot(10, [example(0), example(1), example(2)])))
    assert bytes(brief_of(run, "d", 10).is_right) == b"\x00\x00\x00"


def test_a_run_that_is_removed_meanwhile_is_not_found(run: RunDir) -> None:
    put(run, 10, GOOD)
    assert not brief_of(run, "d", 10).error
    shutil.rmtree(run.path)
    assert brief_of(run, "d", 10).error
    with pytest.raises(NotFoundError):
        read_snapshot(run, "d", 10)
