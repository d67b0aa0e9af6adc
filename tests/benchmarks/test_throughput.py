"""The benchmark of training: all train the same, and a claim can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.throughput import OURS, PEERS, Compared, Work, holds, loss_difference, tiny, train


@pytest.mark.long
def test_the_loss_curve_of_tiny_is_that_of_the_hugging_face_trainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path))
    assert loss_difference() < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("who", PEERS)
def test_every_peer_trains_the_same(
    who: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    work = Work(tmp_path, tiny())
    ours, theirs = (train(one, work, 2) for one in (OURS, who))
    assert theirs.losses == pytest.approx(ours.losses, abs=1e-4)
    assert theirs.tokens_per_s > 0


def test_a_ratio_has_the_interval_of_its_pairs() -> None:
    same = Compared.of([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (same.low, same.mean, same.high) == (2.0, 2.0, 2.0)
    uneven = Compared.of([1.0, 1.1, 0.9], [1.0, 1.0, 1.0])
    assert uneven.low < 0.9 < uneven.mean < 1.1 < uneven.high
    assert Compared.of([3.0], [2.0]).mean == 1.5


@pytest.mark.parametrize(
    ("change", "claim"),
    [({"low": 0.9}, "0.98"), ({"memory": 2}, "memory"), ({"difference": 0.1}, "losses")],
)
def test_every_claim_can_fail(change: dict[str, float], claim: str) -> None:
    ratio = {"mean": 1.1, "low": change.get("low", 1.05), "high": 1.2}
    peaks = dict.fromkeys((OURS, *PEERS), 1)
    peaks[OURS] = int(change.get("memory", 1))
    result = {
        "speed_ratio": dict.fromkeys(PEERS, ratio), "peak_bytes": peaks,
        "largest_loss_difference": dict.fromkeys(PEERS, change.get("difference", 1e-5)),
    }  # fmt: skip
    made = holds({"even, 2 ranks": result})
    assert any(claim in name for name, is_held in made.items() if not is_held)
    assert len(made) == 4
