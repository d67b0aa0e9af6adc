"""The verdict: yes, no, and close to the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.plan.catalogue import gpu_kind
from launch.plan.fit import Fit, Need, context_need, gpu_need, host_need
from launch.plan.host import Phase
from rundir.units import GIB
from tests.launch.plan.made import FOOTPRINT, on_gpus

A100 = gpu_kind("A100")


@pytest.mark.parametrize(
    ("limit", "at_best", "verdict"),
    [
        (20, None, Fit.FITS),
        (19, None, Fit.UNCERTAIN),
        (10, None, Fit.UNCERTAIN),
        (9, None, Fit.DOES_NOT_FIT),
        (9, 10, Fit.UNCERTAIN),
        (20, 5, Fit.FITS),
    ],
)
def test_between_the_least_and_the_most_it_is_not_known(
    limit: int, at_best: int | None, verdict: Fit
) -> None:
    assert Need(10, 20).verdict(limit, at_best) is verdict


def test_a_rank_alone_has_no_buffers_of_nccl() -> None:
    alone, two, eight = (context_need(num_ranks, A100).most_bytes for num_ranks in (1, 2, 8))
    assert alone < two == eight


def test_from_hopper_on_context_and_nccl_take_more() -> None:
    for num_ranks in (1, 8):
        older, newer = (context_need(num_ranks, gpu_kind(name)) for name in ("A100", "H100"))
        assert older.least_bytes < newer.least_bytes
        assert older.most_bytes < newer.most_bytes
        unknown = context_need(num_ranks, None)
        assert unknown == Need(older.least_bytes, newer.most_bytes)
    assert context_need(1, gpu_kind("H100")) == Need(int(0.6 * GIB), int(0.9 * GIB))
    assert context_need(8, gpu_kind("B200")).most_bytes == int(2.9 * GIB)  # NCCL's are 2


def test_what_is_stored_for_good_is_exact_and_what_is_computed_is_not() -> None:
    stored = replace(FOOTPRINT, activations_bytes=0, logits_bytes=0, peak_bytes=21_600_000_000)
    context = context_need(8, A100)
    assert gpu_need(stored, 8, A100).least_bytes == stored.peak_bytes + context.least_bytes
    need = gpu_need(FOOTPRINT, 8, A100)
    assert need.least_bytes < FOOTPRINT.peak_bytes + context.least_bytes
    assert need.most_bytes > FOOTPRINT.peak_bytes + context.most_bytes


def test_the_host_needs_what_its_worst_phase_takes_and_what_the_guard_leaves() -> None:
    phases = [Phase("a", 1000, 9999), Phase("b", 800, 0, slack_bytes=900), Phase("c", 10, 0)]
    need = host_need(phases, guard_bytes=5)
    assert need.least_bytes == 900
    assert need.most_bytes == 880 + 900 + 5


def test_the_host_counts_only_where_it_is_the_one_that_would_run_it() -> None:
    elsewhere, here = (on_gpus("H100", is_here=is_here, host_gib=1) for is_here in (False, True))
    assert elsewhere.host_verdict is here.host_verdict is Fit.DOES_NOT_FIT
    assert elsewhere.verdict is Fit.FITS
    assert here.verdict is Fit.DOES_NOT_FIT


def test_swap_makes_a_no_a_perhaps() -> None:
    plan = on_gpus("H100", is_here=True, host_gib=1)
    assert (
        replace(plan, host=replace(plan.host, with_swap_bytes=500 * GIB)).host_verdict
        is Fit.UNCERTAIN
    )


def test_a_small_gpu_is_too_small_and_hopeless_only_if_the_weights_alone_are_too_much() -> None:
    assert on_gpus("24G").verdict is Fit.DOES_NOT_FIT
    assert not on_gpus("24G").is_hopeless
    assert on_gpus("V100-16G").is_hopeless
    assert on_gpus("48G").verdict is Fit.FITS
