"""The benchmark of data: every claim can fail, and its programs prepare what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import claims, make_corpus, tokenise
from benchmarks.data_cases import MAPS, ORIGINAL, OURS, WHOLE

READING = {
    "file_bytes": 100, "file_in_memory_bytes": 100, "private_bytes": 1, "pickled_bytes": 1,
    "first_batch_s": 0.1,
}  # fmt: skip
SPEEDS = {OURS: 3.0, ORIGINAL: 1.0, **{name: 2.0 for name in MAPS if name != ORIGINAL}}


@pytest.mark.parametrize(
    ("speeds", "peak", "reading", "claim"),
    [
        ({ORIGINAL: 1.5}, 1, {}, "batch 10"), ({list(MAPS)[-1]: 2.9}, 1, {}, "the best map"),
        ({}, 2_000_000_000, {}, "preparing"), ({}, 1, {"file_in_memory_bytes": 111}, "file in"),
        ({}, 1, {"private_bytes": 61_000_000}, "private"), ({}, 1, {"pickled_bytes": 2000}, "pick"),
        ({}, 1, {"first_batch_s": 1.0}, "first batch"),
    ],
)  # fmt: skip
def test_every_claim_can_fail(
    speeds: dict[str, float], peak: int, reading: dict[str, Any], claim: str
) -> None:
    rates = {name: {"mb_per_s": rate} for name, rate in (SPEEDS | speeds).items()}
    found = claims(rates, peak, READING | reading)
    assert [claim in name for name, one in found.items() if not one["holds"]] == [True]
    assert len(found) == 7


@pytest.mark.long
def test_all_cases_that_can_be_run_are(tmp_path: Path) -> None:
    megabytes = make_corpus(tmp_path, 0.5)
    found = tokenise(tmp_path, megabytes, 1)
    assert {OURS, WHOLE} <= found.keys()
    assert all(one["mb_per_s"] > 0 for one in found.values())
