"""The start-up benchmark: its figures are those measured, and its claims can fail."""

from __future__ import annotations

import json

import pytest

from benchmarks.report import ratios
from benchmarks.starts.cases import Case, Figures
from benchmarks.startup import quick_plan
from tests.forked import run_module

WARM, PLAIN = Case("airlock warm", 8), Case("torchrun", 8)


def test_a_ratio_is_that_of_repetitions_made_together() -> None:
    measured = {WARM: Figures(ready_s=[1.0, 6.0]), PLAIN: Figures(ready_s=[10.0, 20.0])}
    values, holds = ratios(measured)
    claim = values["8 ranks warm / 8 under torchrun"]
    assert (claim["min"], claim["median"], claim["max"]) == (0.1, 0.2, 0.3)
    assert claim["holds"] is True
    assert holds == "incomplete"  # the other claims were not measured


def test_a_claim_that_is_not_met_fails() -> None:
    values, holds = ratios({WARM: Figures(ready_s=[9.0]), PLAIN: Figures(ready_s=[10.0])})
    assert values["8 ranks warm / 8 under torchrun"]["holds"] is False
    assert holds is False


def test_one_restart_of_many_that_fails_or_is_slow_is_enough() -> None:
    values, holds = ratios({WARM: Figures(restart_s=[0.1] * 19, num_restarts=20)})
    assert values["restarts that failed, of 20 (3 with --quick)"]["holds"] is False
    assert holds is False
    _, holds = ratios({WARM: Figures(restart_s=[0.1] * 19 + [1.1], num_restarts=20)})
    assert holds is False
    _, holds = ratios({WARM: Figures(num_restarts=20)})
    assert holds is False


@pytest.mark.long
def test_the_quick_benchmark_measures_for_real_and_prints_one_object_last(
    environ: dict[str, str],
) -> None:
    done = run_module("benchmarks.startup", "--quick", "--json", env=environ, is_forked=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {"machine", "cases", "ratios", "holds", "skipped"}
    plan = quick_plan()
    everywhere = {case.name for case in (*plan.timed, *plan.memory)}
    capped = {case.name for case in plan.capped}  # where a memory cgroup can be created
    assert found["cases"].keys() in (everywhere, everywhere | capped)
    assert all(figures["num_failed"] == 0 for figures in found["cases"].values())
    assert found["cases"]["airlock warm, 8 ranks"]["num_restarts"] == 3
    assert len(found["cases"]["airlock warm, 8 ranks"]["restart_s"]) == 3
    assert found["cases"]["airlock warm, 4 ranks"]["peak_anon_bytes"][0] > 0
