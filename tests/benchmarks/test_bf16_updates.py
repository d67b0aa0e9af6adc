"""The benchmark of small updates: a way that does not learn is not said to."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.bf16_updates import RATES, WAYS, claims, name_of


def cases(**falls: float) -> dict[str, dict[str, Any]]:
    """Return cases in which the loss has fallen from 5 by so much, 2 if a way is not named."""
    return {
        name_of(way, rate): {
            "losses": [5.0],
            "eval_before": 5.0,
            "eval_after": 5 - falls.get(way, 2.0),
        }
        for rate in RATES
        for way in WAYS
    }


@pytest.mark.parametrize(
    ("falls", "holds"),
    [({}, True), ({"plain": 0.1}, True), ({"master": 1.7}, False), ({"stochastic": 1.7}, False)],
)
def test_a_way_that_falls_short_of_float32_does_not_hold(
    falls: dict[str, float], holds: bool
) -> None:
    found, verdict = claims(cases(**falls))
    assert verdict is holds
    assert len(found) == len(RATES) * (len(WAYS) - 1)
    assert found[name_of("plain", RATES[0])] == pytest.approx(falls.get("plain", 2.0) / 2)
