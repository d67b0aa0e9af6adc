"""The training benchmark: all train the same, and a claim can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.throughput import holds, losses
from benchmarks.trainings.same_training import OURS, PEERS, Work, tiny


@pytest.mark.long
@pytest.mark.parametrize("who", PEERS)
def test_every_peer_trains_the_same(
    who: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRLOCK_CACHE_DIR", str(tmp_path / "cache"))
    work = Work(tmp_path, tiny())
    ours, theirs = (losses(one, work, 2) for one in (OURS, who))
    assert theirs == pytest.approx(ours, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "claim"),
    [({"low": 0.9}, "0.98"), ({"memory": 2}, "memory"), ({"difference": 0.1}, "losses")],
)
def test_every_claim_can_fail(change: dict[str, float], claim: str) -> None:
    ratio = {"mean": 1.1, "low": change.get("low", 1.05), "high": 1.2}
    peaks = dict.fromkeys((OURS, *PEERS), 1)
    peaks[OURS] = int(change.get("memory", 1))
    result = {
        "speed_ratio": dict.fromkeys(PEERS, ratio),
        "peak_bytes": peaks,
        "largest_loss_difference": dict.fromkeys(PEERS, change.get("difference", 1e-5)),
    }
    made = holds({"even, 2 ranks": result})
    assert any(claim in name for name, is_held in made.items() if not is_held)
    assert len(made) == 4
