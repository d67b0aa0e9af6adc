"""`python -m diagnostics.collectives`: can the ranks reach each other, and are their sums right?

As many processes as the run would have ranks form a process group as ranks do, over gloo on CPU and
NCCL on GPUs. They all-reduce numbers whose sum each of them knows; then every pair exchanges a
block on its own. A rank that dies or keeps the others waiting is named, with the stage that the
others were waiting in. Where GPUs fail, the same is tried with each of NCCL's variables that avoid
a path between them, and the one that mends it is named.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import click

from diagnostics.probes.collective_rank import MEET, TYPES, pair_name
from diagnostics.probes.collective_watch import RankGroup, group_of
from diagnostics.probes.detours import Detour, find_detour, with_detour, without_detour
from diagnostics.probes.result import Findings, check_device_command
from diagnostics.probes.rung import OwnRun, own_run, rung
from launch.checks.system import check_localhost
from launch.config.request import Request
from rundir.finding import Finding
from rundir.units import MIB

_GB = 1e9
_MUCH_SLOWER = 3.0  # than the median of all pairs
_TRY_S = 60.0  # longest for each part of a try, when all that is imported has been read before
DEVICES = ("cuda",)  # gloo has no such variables

Results = list[dict[str, dict[str, Any]]]  # by rank: the result of each stage


@rung("collectives", ends=False)
def main(findings: Findings, request: Request, timeout_s: float) -> None:
    """Let all ranks all-reduce, and every pair exchange; exits with 4 and names any that cannot."""
    findings.add(*check_localhost())
    if not findings.all_ok:
        findings.finish()
    with (
        findings.reported("ranks", check_device_command()),
        own_run(request) as run,
    ):
        placement = run.job.placement
        with group_of(run, timeout_s) as group:
            group.wait(findings.note_memory, timeout_s)
            results, speed, may_mend = list(judge(group)), _speed(group), group.may_be_the_path
        if may_mend and not all(finding.ok for finding in results) and placement.device in DEVICES:
            results = mended(results, run, request, min(timeout_s, _TRY_S), findings.note_memory)
        for finding in results:
            findings.add(finding)
        over = "NCCL" if placement.device == "cuda" else "gloo"
        findings.finish(f"{run.num_ranks} ranks over {over}{speed}")


def mended(
    findings: Sequence[Finding],
    run: OwnRun,
    request: Request,
    timeout_s: float,
    show_progress: Callable[[], None],
) -> list[Finding]:
    """Return the findings, failed ones with the variable that makes all ranks exchange rightly.

    Each try starts all ranks anew, and is given up after `timeout_s` without progress.
    """
    tried: list[Detour] = []

    def works_with(detour: Detour) -> bool:
        click.echo(f"...   the same with {detour}")
        tried.append(detour)
        with group_of(run, timeout_s, detour.settings) as group:
            group.wait(show_progress, timeout_s)
            return all(finding.ok for finding in judge(group))

    detour = find_detour(works_with, run.env)
    if detour is None:
        return [finding if finding.ok else without_detour(finding, tried) for finding in findings]
    gpus = run.job.placement.gpus
    return [
        finding if finding.ok else with_detour(finding, detour, request, gpus)
        for finding in findings
    ]


def judge(group: RankGroup) -> Iterator[Finding]:
    """Yield a finding for each stage that all ranks have completed, then the failure, if any."""
    results: Results = [rank.results() for rank in group.ranks]
    done = set.intersection(*(set(result) for result in results))
    num_ranks = len(results)
    if MEET in done:
        yield Finding(check=MEET, ok=True, text=f"{num_ranks} ranks have met")
    for name in TYPES:
        if f"all-reduce {name}" in done:
            yield judge_sum(name, results)
    if "bandwidth" in done:
        yield judge_bandwidth(results)
    pairs = [
        pair
        for pair in combinations(range(num_ranks), 2)
        if all(pair_name(*pair) in results[rank] for rank in pair)
    ]
    if pairs:
        yield from judge_pairs(pairs, results)
    if group.failure is not None:
        yield group.failure


def judge_sum(name: str, results: Results) -> Finding:
    """Return a finding that fails if any rank's sum is wrong."""
    check = f"all-reduce {name}"
    sums = [sums[check] for sums in results]
    wrong = [f"rank {i}: {sums['wrong']}" for i, sums in enumerate(sums) if "wrong" in sums]
    differ = len({sums["digest"] for sums in sums}) > 1
    right = "exact" if name.startswith("int") else "within rounding"
    return Finding(
        check=check,
        ok=not wrong,
        text="; ".join(wrong) or f"{right} on all ranks",
        warning="ranks have rounded it differently: their models would drift apart"
        if differ and not wrong
        else "",
        do=check_device_command(),
    )


def judge_bandwidth(results: Results) -> Finding:
    """Report the bandwidth of the slowest rank; this never fails."""
    findings = max(
        (finding["bandwidth"] for finding in results), key=lambda finding: float(finding["seconds"])
    )
    size = f"{findings['num_bytes'] // MIB} MiB in {findings['seconds'] * 1e3:.1f} ms"
    return Finding(
        check="bandwidth",
        ok=True,
        text=f"all-reduce of {size}: bus bandwidth {findings['bus_bytes_per_s'] / _GB:.2f} GB/s",
        figures={"seconds": findings["seconds"], "bus_bytes_per_s": findings["bus_bytes_per_s"]},
    )


def judge_pairs(pairs: list[tuple[int, int]], results: Results) -> Iterator[Finding]:
    """Yield a finding for each pair that failed, and one for all the others."""
    speeds: dict[str, float] = {}
    for finding, other in pairs:
        name = pair_name(finding, other)
        findings = {rank: results[rank][name] for rank in (finding, other)}
        wrong = [f"rank {rank}: {it['wrong']}" for rank, it in findings.items() if "wrong" in it]
        if wrong:
            yield Finding(check=name, ok=False, text="; ".join(wrong), do=check_device_command())
        speeds[name] = findings[finding]["bytes_per_s"]
    slowest, middle = (
        min(speeds, key=lambda finding: speeds[finding]),
        statistics.median(speeds.values()),
    )
    warning = ""
    if speeds[slowest] * _MUCH_SLOWER < middle:
        warning = f"{slowest} is {middle / speeds[slowest]:.1f} times slower than the middle one"
    yield Finding(
        check="pairs",
        ok=True,
        warning=warning,
        text=f"{len(speeds)}, at {middle / _GB:.2f} GB/s; the slowest, {slowest}, "
        f"at {speeds[slowest] / _GB:.2f}",
        do="./airlock check environment   # how the GPUs are joined",
        figures={"bytes_per_s": list(speeds.values()), "pairs": list(speeds)},
    )


def _speed(group: RankGroup) -> str:
    findings = group.ranks[0].results().get("bandwidth")
    return (
        "" if findings is None else f", bus bandwidth {findings['bus_bytes_per_s'] / _GB:.2f} GB/s"
    )


if __name__ == "__main__":
    main(prog_name="diagnostics.collectives")
