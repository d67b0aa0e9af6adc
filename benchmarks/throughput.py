"""Training throughput compared with others: tokens per second, memory and loss of the same work.

`python -m benchmarks.throughput [--quick] [--ranks N…] [--turns N] [--hybrid] [--json]` trains a
small model with random weights on 1, 2 and 4 CPU ranks: with Airlock, a bare DDP loop and the HF
Trainer under torchrun, and accelerate launch. Model, samples, order, batch and optimizer are the
same. Samples are either all as long as a row, so that packing gains nothing, or of uneven length.
They train in turns of a few seconds (benchmarks/turns.py); memory is measured with each alone, as
concurrent trainings share the pages of their libraries' files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.report import machine
from benchmarks.trainings.hybrid_throughput import compare_ways, print_ways
from benchmarks.trainings.same_training import OURS, PEERS, Training, Work, synthetic, tiny
from benchmarks.tree import PeakMemory
from benchmarks.turns import Compared, begin, speeds, take_turns, wait_for

_WARM_STEPS = 8  # the first ones allocate states and buckets, whoever trains
_ALONE_STEPS = 60  # until memory grows no more
_STEPS = 2000  # more than there is time for
_COMPARED_STEPS = 50  # of losses: later ones differ only by rounding, which grows
_TURN_S = 3.0
_TIMEOUT_S = 600.0
_EVERY_S = 0.25
_KINDS, _RANKS = ("even", "uneven"), [1, 2, 4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A training in turns with others: tokens per second by turn, and the loss of each step."""

    tokens_per_s: list[float]
    losses: list[float]


def measure(work: Work, num_ranks: int, num_turns: int) -> dict[str, Measured]:
    """Train with each, in turns. Raises RuntimeError with its output when one fails."""
    with ExitStack() as stack:
        trainings, clocks = {}, {}
        for who in (OURS, *PEERS):
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="throughput-"))
            training = stack.enter_context(Training(who, work, num_ranks, Path(name)))
            with _naming(training):
                clocks[who] = begin(training, _WARM_STEPS, _TIMEOUT_S)
            trainings[who] = training
        take_turns(trainings, clocks, num_turns=num_turns, turn_s=_TURN_S, timeout_s=_TIMEOUT_S)
        return {
            who: Measured(
                tokens_per_s=speeds(clocks[who], training.ends(), work.step_tokens),
                losses=training.losses(),
            )
            for who, training in trainings.items()
        }


def peak_bytes(who: str, work: Work, num_ranks: int) -> int:
    """Return the peak proportional set size of all processes while nothing else trains."""
    with (
        tempfile.TemporaryDirectory(prefix="throughput-") as name,
        Training(who, work, num_ranks, Path(name)) as training,
    ):
        memory = PeakMemory(training.tree, _EVERY_S)
        try:
            with _naming(training):
                wait_for(training, _ALONE_STEPS, _TIMEOUT_S)
        finally:
            peak = memory.stop().pss_bytes
    return peak


@contextmanager
def _naming(training: Training) -> Iterator[None]:
    """Add the name and the output of the training to an error."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"{training.who}: {error}\n{training.said()}") from error


def compare(kind: str, num_ranks: int, num_turns: int) -> dict[str, Any]:
    """Compare all of them on samples of that kind."""
    with tempfile.TemporaryDirectory(prefix="throughput-") as name:
        recipe = synthetic(Path(name), is_even=kind == "even", steps=_STEPS)
        work = Work(Path(name), recipe)
        peaks = {who: peak_bytes(who, work, num_ranks) for who in (OURS, *PEERS)}
        found = measure(work, num_ranks, num_turns)
    ours, speed = found[OURS], {}
    for who, one in found.items():
        speed[who] = round(statistics.median(one.tokens_per_s))
        _say(f"{kind}, {num_ranks} ranks, {who}: {speed[who]:,} tokens/s, {peaks[who] >> 20:,} MiB")
    last = min(_COMPARED_STEPS, *(len(one.losses) for one in found.values())) - 1
    return {
        "tokens_per_s": speed,
        "speed_ratio": {
            who: asdict(Compared.of(ours.tokens_per_s, found[who].tokens_per_s)) for who in PEERS
        },
        "peak_bytes": peaks,
        "num_steps_compared": last + 1,
        "largest_loss_difference": {
            who: max(abs(ours.losses[step] - found[who].losses[step]) for step in range(last + 1))
            for who in PEERS
        },
        "last_loss": {who: one.losses[last] for who, one in found.items()},
    }


def losses(who: str, work: Work, num_ranks: int) -> list[float]:
    """Train to the end; return the losses. Raises RuntimeError with the output on failure."""
    with (
        tempfile.TemporaryDirectory(prefix="throughput-") as name,
        Training(who, work, num_ranks, Path(name)) as training,
    ):
        training.tree.wait(_TIMEOUT_S)
        found = training.losses()
        if len(found) != work.recipe.steps:
            num = f"{len(found)} of {work.recipe.steps} steps"
            raise RuntimeError(f"{who}: {num}\n{training.said()}")
    return found


def loss_difference(num_ranks: int = 2) -> float:
    """Return the largest difference between our losses on `tiny` and the Trainer's."""
    with tempfile.TemporaryDirectory(prefix="throughput-") as name:
        work = Work(Path(name), tiny())
        ours, theirs = (losses(who, work, num_ranks) for who in (OURS, "trainer"))
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def holds(results: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Return the claims about every case, and whether they hold: see docs/benchmarks.md."""
    made: dict[str, bool] = {}
    for name, one in results.items():
        ratio, peak = one["speed_ratio"], one["peak_bytes"]
        made[f"{name}: speed, no less than 0.98 of a bare loop's"] = ratio["bare"]["low"] >= 0.98
        made[f"{name}: speed, above the Trainer's"] = ratio["trainer"]["low"] > 1
        made[f"{name}: memory, no more than either"] = peak[OURS] <= min(
            peak["bare"], peak["trainer"]
        )
        made[f"{name}: the same losses"] = max(one["largest_loss_difference"].values()) < 1e-3
    return made


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """Print a row for each case and peer."""
    table = Table("case", "who", "tokens/s", "ours is", "95 %", "peak MB", "last loss")
    for name, one in results.items():
        for who in (OURS, *PEERS):
            ratio = one["speed_ratio"].get(who)
            table.add_row(
                name,
                who,
                f"{one['tokens_per_s'][who]:,}",
                "" if ratio is None else f"{ratio['mean']:.3f} times",
                "" if ratio is None else f"{ratio['low']:.3f} to {ratio['high']:.3f}",
                f"{one['peak_bytes'][who] / 1e6:,.0f}",
                f"{one['last_loss'][who]:.5f}",
            )
    Console(width=110).print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _hybrid(ranks: list[int], num_turns: int, *, as_json: bool) -> None:
    """Compare the ways of `data.packing` with each number of ranks."""
    ways = {f"{num} ranks": compare_ways(num, num_turns) for num in ranks}
    print_ways(ways)
    if as_json:
        all_hold = all(max(one["largest_loss_difference"].values()) < 1e-3 for one in ways.values())
        print(json.dumps({"machine": machine(), "cases": ways, "holds": all_hold}))  # noqa: T201


def main() -> None:
    """Compare, print the table, and with --json one object as the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    parser.add_argument("--quick", action="store_true", help="uneven samples, 2 ranks, few turns")
    parser.add_argument("--turns", type=int, default=20, help=f"of {_TURN_S:.0f} s for each")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N", help="1 2 4; a hybrid: 2")
    parser.add_argument("--samples", nargs="+", default=list(_KINDS), choices=_KINDS)
    parser.add_argument(
        "--hybrid", action="store_true", help="only a hybrid model: packed, by length and padded"
    )
    options = parser.parse_args()
    if options.quick:
        options.turns, options.ranks, options.samples = 2, [2], ["uneven"]
    if options.hybrid:
        _hybrid(options.ranks or [2], options.turns, as_json=options.json)
        return
    options.ranks = options.ranks or _RANKS
    results: dict[str, dict[str, Any]] = {}
    for kind in options.samples:
        for num_ranks in options.ranks:
            one = compare(kind, num_ranks, options.turns)
            results[f"{kind}, {num_ranks} ranks"] = one
    print_table(results)
    claims, curve = holds(results), loss_difference()
    claims["tiny: the losses of the Trainer, 50 steps, within 1e-4"] = curve < 1e-4
    _say(f"tiny, 2 ranks: losses differ from the Trainer's by {curve:.1e} at most, in 50 steps")
    if options.json:
        found = {
            "machine": machine(),
            "cases": results,
            "claims": claims,
            "tiny_largest_loss_difference": curve,
        }
        is_whole = len(results) == len(_KINDS) * len(_RANKS)
        all_hold: bool | str = all(claims.values())
        all_hold = all_hold and (is_whole or "incomplete")
        print(json.dumps({**found, "holds": all_hold}))  # noqa: T201


if __name__ == "__main__":
    main()
