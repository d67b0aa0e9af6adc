"""The benchmark of the server: its runs are read as they were meant, and its claims can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.serve import holds
from benchmarks.serving.long_runs import write_runs
from benchmarks.serving.measured_server import Server

_GOOD: dict[str, dict[str, Any]] = {
    "indexing": {"slowest_query_s": 0.1, "first_answer_s": 0.1, "server_peak_bytes": 50e6},
    "latency": {"slowest_s": 0.3, "server_peak_bytes": 50e6},
    "beside training": {"share_of_ranks_cpu": 0.001},
}


@pytest.mark.parametrize(
    ("case", "figure", "value"),
    [
        ("indexing", "slowest_query_s", 1.6),
        ("indexing", "first_answer_s", 1.6),
        ("indexing", "server_peak_bytes", 121e6),
        ("latency", "server_peak_bytes", 121e6),
        ("latency", "slowest_s", 1.1),
        ("beside training", "share_of_ranks_cpu", 0.006),
    ],
)
def test_each_claim_can_fail(case: str, figure: str, value: float) -> None:
    cases = _GOOD | {case: _GOOD[case] | {figure: value}}
    assert list(holds(cases).values()).count(False) == 1


def test_what_was_not_measured_is_not_claimed() -> None:
    assert len(holds({key: _GOOD[key] for key in ("indexing", "latency")})) == len(holds(_GOOD)) - 1


def test_the_runs_are_served(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", 2, 3000)
    with Server(tmp_path / "runs", tmp_path / "cache") as server:
        newest = server.get("/api/runs")["runs"][0]["id"]
        server.index(newest)
        _, told = server.metrics(newest, "train.loss,eval.exact_match&points=5000")
        assert told["series"]["train.loss"]["steps"] == list(range(1, 3001))
        assert told["series"]["eval.exact_match"]["steps"] == [1000, 2000, 3000]
        assert 10e6 < server.peak_bytes() < 120e6
        assert server.cpu_s() > 0
