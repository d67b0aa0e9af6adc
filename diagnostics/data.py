"""`python -m diagnostics.data`: are the actual batches of the first steps what they should be?

The data are read, checked and tokenised as in a run. Then each rank's micro-batches are built as
the rank builds them, and checked against the invariants of every batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from diagnostics.probes.result import Findings, install_command
from diagnostics.probes.rung import OwnRun, own_run, rung
from launch.config.request import Request
from launch.files.data_file import check_data
from launch.files.preparation import have_data_of_hub
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.finding import Finding

_NUM_STEPS = 10
# Over all ranks' batches of some steps; num_places are rows times their length, with padding.
Totals = Counter[str]
_SHOWN = ("num_steps", "num_batches", "num_tokens", "num_label_tokens", "longest_row")
_OURS = "./test.sh tests/train   # this is a fault of train/, not of the data"


@rung("data")
def main(findings: Findings, request: Request, _timeout_s: float) -> None:
    """Prepare the data, and check the batches of the first steps; exits with 4 if one is wrong."""
    with findings.reported("ranks", install_command()), own_run(request) as run:
        with findings.reported("rows", f"head {run.config.data.path}"):
            check_data(run.config)
        with findings.reported("model", install_command()):
            folder = run.model_folder()  # for its tokenizer
        with findings.reported("rows", f"head {run.config.data.path}"):
            have_data_of_hub(run.config, run.folder, run.env, Signals())
            from train.prepare import prepare

            prepared = prepare(run.folder, folder, None)
            train = prepared.train
            findings.add(_describe(train))
        with findings.reported("batches", _OURS):
            from train.data.dataset import SampleFile
            from train.data.fits_model import model_config

            vocab_size = model_config(folder).get("vocab_size")
            totals: Totals = Counter()
            wrong = list(check_batches(run, SampleFile(train), vocab_size, totals))
            findings.add(judge(wrong, totals, run))
    findings.finish(f"{train.num_samples:,} samples; {_in_words(totals, run)}")


def _describe(train: Any) -> Finding:
    return Finding(
        check="rows",
        ok=True,
        text=f"{train.num_samples:,} samples of up to {train.longest:,} tokens, "
        f"{train.num_too_long:,} left out as too long",
        figures={"num_samples": train.num_samples, "longest": train.longest},
    )


def check_batches(
    run: OwnRun, samples: Any, vocab_size: int | None, totals: Totals
) -> Iterator[str]:
    """Yield all that is wrong with the batches of the first steps; count them in `totals`."""
    from train.batches.course import course_of
    from train.batches.feed import Feed, order_of

    config, ranks = run.config, range(run.num_ranks)
    course = course_of(config, len(samples))
    order = order_of(samples, course)
    feeds = [Feed(samples, config, rank, run.num_ranks) for rank in ranks]
    for step in range(min(_NUM_STEPS, course.num_steps)):
        totals["num_steps"] += 1
        if _samples_in(feeds[0].shares(step)) != Counter(order.step_indices(step)):
            yield f"step {step}: the ranks do not have each of its samples exactly once"
        before = totals["num_tokens"]
        for rank, feed in enumerate(feeds):
            for number, batch in enumerate(feed.step(step)):
                where = f"step {step}, rank {rank}, micro-batch {number}"
                yield from (f"{where}: {what}" for what in check_batch(batch, config, vocab_size))
                _count(batch, totals)
        given = totals["num_tokens"] - before
        if given != (wanted := sum(map(samples.length, order.step_indices(step)))):
            yield f"step {step}: the ranks' batches have {given:,} tokens, its samples {wanted:,}"


def _samples_in(shares: list[Any]) -> Counter[int]:
    """Count how often each sample occurs in the shares of all ranks."""
    return Counter(sample for share in shares for batch in share for row in batch for sample in row)


def check_batch(batch: Any, config: RunConfig, vocab_size: int | None) -> Iterator[str]:
    """Yield everything that is wrong with one micro-batch."""
    from train.batches.batch import IGNORE

    ids, labels = batch.input_ids, batch.labels
    if ids.shape != labels.shape:
        yield f"inputs are {tuple(ids.shape)}, labels {tuple(labels.shape)}"
        return
    has_loss = labels != IGNORE
    if vocab_size is not None and not bool(((ids >= 0) & (ids < vocab_size)).all()):
        yield f"a token id is outside the model's {vocab_size:,}"
    if not bool((labels[has_loss] == ids[has_loss]).all()):
        yield "a label differs from the token at its position"
    if batch.num_input_tokens and not bool(has_loss.any(dim=1).all()):
        yield "a row has nothing to learn"
    longest = config.data.max_seq_length
    if ids.shape[1] > longest:
        yield f"rows have {ids.shape[1]:,} tokens, and data.max_seq_length is {longest:,}"
    if ids.shape[0] > config.train.micro_batch_size:
        yield f"it has {ids.shape[0]} rows, and train.micro_batch_size is smaller"


def _count(batch: Any, totals: Totals) -> None:
    totals["num_batches"] += 1
    totals["num_tokens"] += batch.num_input_tokens
    totals["num_label_tokens"] += batch.num_label_tokens
    totals["num_places"] += batch.input_ids.numel()
    totals["longest_row"] = max(totals["longest_row"], batch.input_ids.shape[1])


def judge(wrong: list[str], totals: Totals, run: OwnRun) -> Finding:
    """Return one finding for all batches."""
    more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return Finding(
        check="batches",
        ok=not wrong,
        text=f"{wrong[0]}{more}" if wrong else _in_words(totals, run),
        do=_OURS,
        figures={**{key: totals[key] for key in _SHOWN}, "num_wrong": len(wrong)},
    )


def _in_words(totals: Totals, run: OwnRun) -> str:
    share = totals["num_label_tokens"] / max(1, totals["num_tokens"])
    filled = totals["num_tokens"] / max(1, totals["num_places"])
    return (
        f"{totals['num_batches']} batches of {totals['num_steps']} steps on {run.num_ranks} ranks: "
        f"{totals['num_tokens']:,} tokens, {share:.0%} with loss, rows {filled:.0%} full"
    )


if __name__ == "__main__":
    main(prog_name="diagnostics.data")
