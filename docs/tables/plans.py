"""`python -m docs.tables.plans`: write the table of docs/plans.md, a plan in each row.

Its figures are those of `airlock plan`: a configuration that was traced before is not traced again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from docs.tables.renewed import Tables, write
from launch.config.resolve import resolve
from launch.plan.catalogue import gpu_kind
from launch.plan.fit import Fit, gpu_need
from launch.plan.question import Question, question_of
from launch.plan.target import with_ranks
from launch.plan.tracer import Tracer
from launch.plan.ways import BY_PREFERENCE, Way
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.footprint import Footprint
from rundir.units import GIB

_PROFILES = ("14b", "32b")
_METHODS = ("lora", "qlora", "full")
_NUM_RANKS = (1, 2, 4, 8)
_GPUS = ("A100-40G", "A100-80G", "H100-80G", "H200-141G", "B200-180G")
_WORDS_FIRST = ("model", "method", "ranks", "optimizer", "updates")
_SIZES = ("weights", "gradients", "states", "step", "peak")
_WORDS = {Fit.FITS: "fits", Fit.UNCERTAIN: "perhaps", Fit.DOES_NOT_FIT: "no"}
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row: a profile as it is, but for method, ranks, how states are kept and used.

    Only with full training, where weights are bfloat16, do updates differ (`way`).
    """

    profile: str
    method: str
    num_ranks: int
    is_sharded: bool
    way: Way = "master"

    @property
    def config(self) -> RunConfig:
        """The resolved configuration, by the profile alone: no environment changes it."""
        config = with_ranks(resolve(self.profile, [f"train.method={self.method}"], {})[0], 1)
        train = replace(config.train, shard_optimizer=self.is_sharded, bf16_updates=self.way)
        return with_ranks(replace(config, train=train), self.num_ranks)

    @property
    def question(self) -> Question:
        """The question for the tracer."""
        return question_of(self.config, "cuda")


def cases() -> list[PlanRow]:
    """Return all rows in order. A rank that is alone has nobody to share states with."""
    return [
        PlanRow(profile, method, num_ranks, is_sharded, updates)
        for profile in _PROFILES
        for method in _METHODS
        for num_ranks in _NUM_RANKS
        for is_sharded in ((False, True) if num_ranks > 1 else (False,))
        for updates in (BY_PREFERENCE if method == "full" else BY_PREFERENCE[:1])
    ]


def answers(asked: list[PlanRow]) -> list[Footprint]:
    """Return the footprint of each. Raises UserError if one cannot be traced."""
    tracer = Tracer([case.question for case in asked], os.environ, timeout_s=_TIMEOUT_S)
    return tracer.wait(Signals())  # which hears nothing: Ctrl-C ends this program


def row(case: PlanRow, footprint: Footprint) -> Iterator[str]:
    """Yield the cells of a row; sizes in GiB, of one rank."""
    yield from (case.profile, case.method, str(case.num_ranks))
    yield "shared" if case.is_sharded else "whole"
    yield case.way if case.method == "full" else ""
    step_bytes = footprint.ddp_bytes + footprint.activations_bytes + footprint.logits_bytes
    for size in (
        footprint.weights_bytes,
        footprint.gradients_bytes,
        footprint.optimizer_bytes,
        step_bytes,
        footprint.peak_bytes,
    ):
        yield f"{size / GIB:.2f}"
    for kind in map(gpu_kind, _GPUS):
        need = gpu_need(footprint, case.num_ranks, kind)
        yield _WORDS[need.verdict(kind.memory_bytes)]


def plans_table() -> str:
    """Return the table as Markdown."""
    asked = cases()
    results = answers(asked)
    rules = ("---",) * len(_WORDS_FIRST) + ("---:",) * len(_SIZES) + ("---",) * len(_GPUS)
    lines = [_WORDS_FIRST + _SIZES + _GPUS, rules]
    lines += [tuple(row(case, result)) for case, result in zip(asked, results, strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


TABLES: Tables = {"docs/plans.md": {"plans": plans_table}}


if __name__ == "__main__":
    write(TABLES)
