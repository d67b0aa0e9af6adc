"""Curves of metrics: each value of few, the range of many; what was overwritten is gone."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor.http.json_api import BadRequestError
from monitor.metrics import metrics_query
from monitor.metrics.index import Index
from monitor.metrics.metrics_query import MetricsQuestion
from tests.monitor.metrics.event_files import WrittenRun


@pytest.fixture
def written(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index", in_background=False)
    yield index
    index.close()


def ask(index: Index, written: WrittenRun, *series: str, **rest: Any) -> dict[str, Any]:
    """Return an answer as soon as everything is indexed."""
    question = MetricsQuestion(series=series or ("train.loss",), **rest)
    while True:
        told = index.metrics(written.run, question)
        if told["indexed"]["done"]:
            json.dumps(told, allow_nan=False)
            return told


def test_no_spike_is_lost_among_many_values(index: Index, written: WrittenRun) -> None:
    written.many(1, 5000)
    written.train(5001, loss=1e9)
    written.train(5002, loss=-1e9)
    written.many(5003, 9000)
    told = ask(index, written, points=7)
    curve = told["series"]["train.loss"]
    assert not told["exact"]
    assert len(curve["steps"]) == 7
    assert max(curve["max"]) == 1e9
    assert min(curve["min"]) == -1e9
    assert curve["steps"][-1] == 9000
    assert curve["last"][-1] == 9000.0


@pytest.mark.parametrize("seed", range(5))
def test_buckets_are_what_plain_sums_say(seed: int, index: Index, written: WrittenRun) -> None:
    chance = random.Random(seed)
    values = [chance.choice([chance.uniform(-9, 9), math.nan]) for _ in range(3000)]
    for step, value in enumerate(values, 1):
        written.train(step, loss=value, mfu=None if step % 3 else value)
    low, high = sorted(chance.sample(range(1, 3000), 2))
    points = chance.randrange(1, 200)
    told = ask(index, written, "train.loss", from_step=low, to_step=high, points=points)
    num = high - low + 1
    assert told["exact"] == (num <= points)
    curve = told["series"]["train.loss"]
    num_buckets = min(num, points)
    assert len(curve["steps"]) == num_buckets
    for k in range(num_buckets):
        start, end = (low - 1 + i * num // num_buckets for i in (k, k + 1))
        there = [value for value in values[start:end] if not math.isnan(value)]
        assert curve["steps"][k] == end
        assert curve["min"][k] == (min(there) if there else "nan")
        assert curve["max"][k] == (max(there) if there else "nan")
        if there:
            assert curve["mean"][k] == pytest.approx(sum(there) / len(there))
    bad = [step for step in range(low, high + 1) if math.isnan(values[step - 1])]
    assert curve.get("nan", []) == bad[:1000]


def test_zoomed_in_each_value_is_there(index: Index, written: WrittenRun) -> None:
    written.many(1, 3000)
    told = ask(index, written, from_step=1020, to_step=1030, points=11)
    curve = told["series"]["train.loss"]
    assert told["exact"]
    assert curve["steps"] == list(range(1020, 1031))
    assert curve["min"] == curve["max"] == curve["mean"] == curve["last"]
    assert curve["last"] == [float(step) for step in range(1020, 1031)]
    assert not ask(index, written, from_step=1020, to_step=1031, points=11)["exact"]
    beyond = ask(index, written, from_step=3001)["series"]["train.loss"]
    before = ask(index, written, to_step=0)["series"]["train.loss"]
    assert beyond["steps"] == before["steps"] == []


def test_numbers_that_json_lacks_have_their_names_and_nulls_are_left_out(
    index: Index, written: WrittenRun
) -> None:
    written.train(1, loss=math.nan, mfu=None)
    written.train(2, loss=math.inf, mfu=0.5)
    written.train(3, loss=2.0, mfu=None)
    told = ask(index, written, "train.loss", "train.mfu")["series"]
    assert told["train.loss"]["last"] == ["nan", "inf", 2.0]
    assert told["train.loss"]["nan"] == [1]
    assert told["train.mfu"]["steps"] == [2]


def test_what_has_no_steps_is_by_time_and_each_gpu_and_rank_has_its_own(
    index: Index, written: WrittenRun
) -> None:
    launch = written.writer("launch")
    for used in (10, 20):
        for gpu in (0, 1):
            more = {"utilization_percent": None, "temperature_c": None, "power_w": 99.5}
            launch.emit(
                "metric",
                "gpu",
                index=gpu,
                used_bytes=used + gpu,
                total_bytes=99,
                power_limit_w=None,
                slowed_by=["power cap"],
                **more,
            )
    times = {"time_data_s": 1.0, "time_compute_s": 2.0, "time_wait_s": 3.0}
    for rank in (0, 1):
        written.writer(f"rank{rank}").emit("metric", "train.rank", step=5, num_steps=5, **times)
    told = ask(index, written, "gpu.used_bytes@1", "gpu.*", "train.rank.time_wait_s@*")
    assert told["series"]["gpu.used_bytes@1"]["last"] == [11.0, 21.0]
    assert "steps" not in told["series"]["gpu.used_bytes@1"]
    assert told["series"]["gpu.power_w@0"]["last"] == [99.5, 99.5]
    assert {"train.rank.time_wait_s@0", "train.rank.time_wait_s@1"} < told["series"].keys()
    assert told["resumes"] == []
    t = told["series"]["gpu.used_bytes@0"]["t"]
    assert ask(index, written, "gpu.used_bytes@0", from_t=t[1])["series"]["gpu.used_bytes@0"][
        "last"
    ] == [20.0]


def test_what_may_come_is_empty_and_what_cannot_is_refused(
    index: Index, written: WrittenRun
) -> None:
    told = ask(index, written, "train.loss", "host.pss_bytes")["series"]
    assert told["train.loss"]["steps"] == told["host.pss_bytes"]["t"] == []
    for name in ("train.los", "loss", "", "train", "@", "train.loss.x@0"):
        with pytest.raises(BadRequestError):
            ask(index, written, name)
    with pytest.raises(BadRequestError, match="after"):
        ask(index, written, after="yesterday")


def test_many_series_have_fewer_points_each(
    index: Index, written: WrittenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.many(1, 20)
    whole = ask(index, written, "train.*", points=20)
    assert whole["exact"]
    monkeypatch.setattr(metrics_query, "MOST_VALUES", 100)
    less = ask(index, written, "train.*", points=20)
    assert not less["exact"]
    lengths = {len(curve["steps"]) for curve in less["series"].values()}
    assert lengths == {100 // len(less["series"])}
    assert ask(index, written, "train.loss", points=20)["exact"]


def test_a_cursor_gives_only_what_has_come_since(index: Index, written: WrittenRun) -> None:
    written.many(1, 1500)
    first = ask(index, written)
    assert not first["reset"]
    none = ask(index, written, after=first["cursor"])
    assert none["series"]["train.loss"]["steps"] == []
    written.many(1501, 1503)
    new = ask(index, written, after=none["cursor"])
    assert new["series"]["train.loss"]["steps"] == [1501, 1502, 1503]
    assert (new["reset"], new["exact"]) == (False, True)


def test_a_restart_overwrites_the_steps_that_it_repeats_and_is_marked(
    index: Index, written: WrittenRun
) -> None:
    written.many(1, 2500)
    written.evaluate(2400, loss=9.0)
    other = {"num_steps": 1, "time_data_s": 1.0, "time_compute_s": 1.0}
    for step in (1000, 2000):
        written.writer("rank1").emit("metric", "train.rank", step=step, time_wait_s=1.0, **other)
    before = ask(index, written, "train.loss")
    written.begin_attempt(1, first_step=1000)
    stopped = ask(index, written, "train.loss", "eval.loss", after=before["cursor"], points=9999)
    assert stopped["reset"]
    assert stopped["series"]["train.loss"]["steps"] == list(range(1, 1001))
    assert stopped["series"]["eval.loss"]["steps"] == []
    for step in range(1001, 1011):
        written.train(step, loss=-1.0)
    written.writer("rank1").emit("metric", "train.rank", step=1010, time_wait_s=2.0, **other)
    told = ask(index, written, "train.loss", "train.rank.time_wait_s@1", points=9999)
    curve = told["series"]["train.loss"]
    assert curve["steps"] == list(range(1, 1011))
    assert curve["last"][998:1002] == [999.0, 1000.0, -1.0, -1.0]
    assert told["series"]["train.rank.time_wait_s@1"]["steps"] == [1000, 1010]
    assert [(one["step"], one["attempt"], one["why"]) for one in told["resumes"]] == [
        (1000, 1, "restart")
    ]


def test_steps_that_were_undone_are_overwritten_too(index: Index, written: WrittenRun) -> None:
    for step in (10, 20, 30):
        written.train(step, loss=1.0)
    written.evaluate(30, loss=1.0)
    for step in (20, 30, 40):
        written.train(step, loss=2.0)
    told = ask(index, written, "train.loss", "eval.loss")
    assert told["series"]["train.loss"]["last"] == [1.0, 2.0, 2.0, 2.0]
    assert told["series"]["eval.loss"]["steps"] == []
    assert [(one["step"], one["why"]) for one in told["resumes"]] == [(10, "rollback")]


def test_an_evaluation_of_the_same_step_counts_once(index: Index, written: WrittenRun) -> None:
    for loss in (1.0, 2.0):
        written.evaluate(5, loss=loss)
    told = ask(index, written, "eval.loss")
    assert told["series"]["eval.loss"]["last"] == [2.0]
    assert told["resumes"] == []


def test_a_run_that_goes_on_from_another_says_which(index: Index, written: WrittenRun) -> None:
    checkpoint = "/somewhere/runs/20251231-000000-old-ffff/checkpoints/step_00000200"
    (written.run.path / "prepared.json").write_text(json.dumps({"resume_from": checkpoint}))
    written.begin_attempt(0, first_step=200)
    written.train(210, loss=1.0)
    (mark,) = ask(index, written)["resumes"]
    assert (mark["step"], mark["run"], mark["why"]) == (200, "20251231-000000-old-ffff", "resume")


def test_a_torn_line_waits_and_one_that_stays_broken_is_left_out(
    index: Index, written: WrittenRun
) -> None:
    written.train(1, loss=1.0)
    written.raw(b'{"v": 1, "kind": "metric", "na')
    written.writer("launch").emit(
        "metric", "host", pss_bytes=1, pss_anon_bytes=1, num_processes=1, available_bytes=7
    )
    told = ask(index, written, "train.loss", "host.available_bytes")
    assert told["series"]["train.loss"]["steps"] == [1]
    assert told["series"]["host.available_bytes"]["last"] == [7.0]
    written.raw(b'me": "train", "step": 2, "loss": 2.0}\n')
    assert ask(index, written)["series"]["train.loss"]["steps"] == [1, 2]
    written.raw(b'{"kind": "metric", "name": "train", "step": 3, "lo\n\xff\xfe"metric"\n')
    written.raw(b'["metric"]\n"metric"\n' + b'{"metric":' * 5000 + b"\n")
    for broken in ({"step": None}, {"step": "x"}, {"step": 1e400}, {"name": 7}, {"name": ["x"]}):
        event = {"kind": "metric", "name": "train", "step": 3, "loss": 3.0} | broken
        written.raw(json.dumps(event).encode() + b"\n")
    written.raw(b'{"kind": "metric", "name": "train", "step": 4, "loss": 1' + b"0" * 400 + b"}\n")
    written.train(5, loss=5.0)
    assert ask(index, written)["series"]["train.loss"]["steps"] == [1, 2, 4, 5]


def test_a_line_longer_than_any_piece_is_got_over(index: Index, written: WrittenRun) -> None:
    written.train(1, loss=1.0)
    written.raw(b'{"kind": "metric", "text": "' + b"x" * 3_000_000 + b'"}\n')
    written.train(2, loss=2.0)
    assert ask(index, written)["series"]["train.loss"]["steps"] == [1, 2]


def test_fields_that_come_later_begin_where_they_come(index: Index, written: WrittenRun) -> None:
    written.many(1, 1100)
    written.raw(b'{"kind": "metric", "name": "train", "t": 1, "step": 1101, "loss": 1, "new": 3}\n')
    told = ask(index, written, "train.new", "train.loss", points=5000)
    assert told["series"]["train.new"]["steps"] == [1101]
    assert len(told["series"]["train.loss"]["steps"]) == 1101


def test_a_run_without_events_has_empty_curves(index: Index, written: WrittenRun) -> None:
    written.run.events.rmdir()
    told = ask(index, written)
    assert told["series"]["train.loss"]["steps"] == []
    assert told["indexed"] == {"bytes": 0, "of_bytes": 0, "done": True}
