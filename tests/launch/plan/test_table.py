"""Every row of docs/plans.md is what arithmetic says, without the tracer; and is up to date."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from docs.tables.plans import TABLES, PlanRow, answers, cases
from docs.tables.renewed import renewed
from rundir.footprint import Footprint
from tests.conftest import ROOT
from tests.launch.plan.arithmetic import (
    GIB,
    SHAPES,
    STEP_ERROR,
    gradients_bytes,
    states_bytes,
    step_bytes,
    weights_bytes,
)

PAGE = ROOT / "docs" / "plans.md"
VISIBLE_GIB = {
    "A100-40G": 39.5,
    "A100-80G": 79.1,
    "H100-80G": 79.1,
    "H200-141G": 139.8,
    "B200-180G": 178.0,
}
HALF_OF_LAST_DIGIT = 0.005
each_row = pytest.mark.parametrize(
    "case",
    cases(),
    ids=lambda case: (
        f"{case.profile} {case.method} {case.num_ranks} "
        f"{'shared' if case.is_sharded else 'whole'} {case.way}"
    ),
)


def rows() -> list[dict[str, str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def row_of(case: PlanRow) -> dict[str, str]:
    optimizer = "shared" if case.is_sharded else "whole"
    way = case.way if case.method == "full" else ""
    wanted = (case.profile, case.method, str(case.num_ranks), optimizer, way)
    names = ("model", "method", "ranks", "optimizer", "updates")
    (found,) = (row for row in rows() if tuple(row[name] for name in names) == wanted)
    return found


def states_of(case: PlanRow) -> int:
    sharing = case.num_ranks if case.is_sharded else 1
    has_copies = case.way == "master"
    return states_bytes(SHAPES[case.profile], case.method, sharing, has_copies=has_copies)


def test_the_table_has_each_model_method_and_number_of_ranks_and_each_gpu() -> None:
    found = rows()
    assert len(found) == len(cases()) == 2 * (2 + 2) * (1 + 3 * 2)  # full training in two ways
    assert {row["ranks"] for row in found} == {"1", "2", "4", "8"}
    assert all(row.keys() >= VISIBLE_GIB.keys() for row in found)


@each_row
def test_a_row_is_what_arithmetic_says_and_whether_it_fits_follows(case: PlanRow) -> None:
    row, shape = row_of(case), SHAPES[case.profile]
    exact = {
        "weights": weights_bytes(shape, case.method),
        "gradients": gradients_bytes(shape, case.method),
        "states": states_of(case),
    }
    for name, num_bytes in exact.items():
        assert float(row[name]) == pytest.approx(num_bytes / GIB, abs=HALF_OF_LAST_DIGIT), name
    step = step_bytes(shape, case.method) / GIB
    assert float(row["step"]) == pytest.approx(step, rel=STEP_ERROR)
    parts = sum(float(row[name]) for name in ("weights", "gradients", "states", "step"))
    assert float(row["peak"]) == pytest.approx(parts, abs=5 * HALF_OF_LAST_DIGIT)
    for gpu, visible in VISIBLE_GIB.items():
        least, most = bounds_gib(row, case.num_ranks, is_new=gpu[0] in "HB")
        said = "fits" if most <= visible else "no" if least > visible else "perhaps"
        is_close = min(abs(most - visible), abs(least - visible)) < 4 * HALF_OF_LAST_DIGIT
        assert row[gpu] == said or is_close, (gpu, least, most)


def bounds_gib(row: Mapping[str, str], num_ranks: int, *, is_new: bool) -> tuple[float, float]:
    """Return the least and the most that a rank needs: docs/plan.md has these margins."""
    peak, step, weights = (float(row[name]) for name in ("peak", "step", "weights"))
    least, most = (0.6, 0.9) if is_new else (0.3, 0.6)
    if num_ranks > 1:
        least, most = (least + 0.4, most + 2.0) if is_new else (least + 0.2, most + 1.0)
    return peak - 0.05 * step + least, peak + 0.05 * step + 0.05 * (peak - weights) + most


def test_a_14b_model_is_trained_whole_on_eight_h100_with_shared_states() -> None:
    row = row_of(PlanRow("14b", "full", 8, is_sharded=True))
    assert row["H100-80G"] == row["A100-80G"] == "fits"
    assert row_of(PlanRow("14b", "full", 8, is_sharded=False))["H100-80G"] == "no"


@pytest.fixture(scope="module")
def traced() -> dict[PlanRow, Footprint]:
    """Return what the tracer says of every row; it is asked once for each configuration."""
    asked = cases()
    return dict(zip(asked, answers(asked), strict=True))


@pytest.mark.long
@pytest.mark.timeout(1800)
@each_row
def test_a_trace_has_to_the_byte_what_arithmetic_says(
    case: PlanRow, traced: dict[PlanRow, Footprint]
) -> None:
    found, shape = traced[case], SHAPES[case.profile]
    assert found.weights_bytes == weights_bytes(shape, case.method)
    assert found.gradients_bytes == gradients_bytes(shape, case.method)
    assert found.optimizer_bytes == states_of(case)
    assert found.ddp_bytes == 0
    step = found.activations_bytes + found.logits_bytes
    assert step == pytest.approx(step_bytes(shape, case.method), rel=STEP_ERROR)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_table_is_up_to_date(traced: dict[PlanRow, Footprint]) -> None:
    assert traced  # so that it is answered from the cache
    assert renewed(PAGE, TABLES) == PAGE.read_text(), "run: python -P -m docs.tables.plans"
