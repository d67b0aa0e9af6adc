"""The data benchmark: every claim can fail, and its programs prepare what they say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.corpora.stream_cases import PEER, STREAM
from benchmarks.corpora.tokenise_cases import MAPS, ORIGINAL, OURS, WHOLE
from benchmarks.data import claims, make_corpus
from benchmarks.streaming import ROOT, stream
from benchmarks.tokenising import tokenise

READING = {
    "file_bytes": 100,
    "file_in_memory_bytes": 100,
    "private_bytes": 1,
    "pickled_bytes": 1,
    "first_batch_s": 0.1,
}
STREAMING = {
    STREAM: {"samples_per_s": 2.0, "resumed_s": 0.1},
    PEER: {"samples_per_s": 1.0},
}
SPEEDS = {OURS: 3.0, ORIGINAL: 1.0, **{name: 2.0 for name in MAPS if name != ORIGINAL}}


def told(speeds: dict[str, float]) -> dict[str, dict[str, Any]]:
    return {
        name: {"mb_per_s": rate, "ours_is": {"mean": speeds[OURS] / rate}}
        for name, rate in speeds.items()
    }


@pytest.mark.parametrize(
    ("speeds", "peak", "reading", "streamed", "claim"),
    [
        ({ORIGINAL: 1.5}, 1, {}, {}, "batch 10"),
        ({list(MAPS)[-1]: 2.9}, 1, {}, {}, "the best map"),
        ({}, 2_000_000_000, {}, {}, "preparing"),
        ({}, 1, {"file_in_memory_bytes": 111}, {}, "file in"),
        ({}, 1, {"private_bytes": 61_000_000}, {}, "private"),
        ({}, 1, {"pickled_bytes": 2000}, {}, "pick"),
        ({}, 1, {"first_batch_s": 1.0}, {}, "first batch"),
        ({}, 1, {}, {"samples_per_s": 0.9}, "that of datasets"),
        ({}, 1, {}, {"resumed_s": 2.0}, "to go on"),
    ],
)
def test_every_claim_can_fail(
    speeds: dict[str, float],
    peak: int,
    reading: dict[str, Any],
    streamed: dict[str, float],
    claim: str,
) -> None:
    streaming = STREAMING | {STREAM: STREAMING[STREAM] | streamed}
    found = claims(told(SPEEDS | speeds), peak, READING | reading, streaming)
    assert [claim in name for name, one in found.items() if not one["holds"]] == [True]
    assert len(found) == 9


@pytest.mark.long
def test_all_cases_that_can_be_run_are(tmp_path: Path) -> None:
    make_corpus(tmp_path, 0.5)
    found = tokenise(tmp_path, 3, os.environ | {"PYTHONPATH": str(ROOT)}, print)
    assert {OURS, WHOLE} <= found.keys()
    assert all(one["mb_per_s"] > 0 for one in found.values())


@pytest.mark.long
def test_ranks_that_stream_have_every_row_once(tmp_path: Path) -> None:
    make_corpus(tmp_path, 0.5)
    found = stream(tmp_path, 1, os.environ | {"PYTHONPATH": str(ROOT)}, print)[STREAM]
    assert found["samples_per_s"] > 0
    assert 0 <= found["num_rows"] - found["rows_of_all_ranks"] < 64  # steps are whole
