"""Two snapshots side by side: of one run or of two, example by example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from monitor.answers.snapshot_files import Example, Snapshot, read_snapshot
from monitor.answers.words import word_diff
from rundir.paths import RunDir

Change = Literal["newly_right", "regressed", "still_right", "never_right"]
CHANGES: tuple[Change, ...] = get_args(Change)
At = tuple[RunDir, int]  # a snapshot: of which run, after which step


def compare(
    a: At,
    b: At,
    dataset: str,
    *,
    change: str = "",
    search: str = "",
    limit: int = 100,
    offset: int = 0,
) -> dict[str, Any]:
    """Return what has changed from `a` to `b`, of which examples, and by which words.

    Examples belong together by their number, if both snapshots are of the same data; else by their
    prompt and expected answer.
    """
    before, after = (read_snapshot(run, dataset, step) for run, step in (a, b))
    is_same_data = before.dataset_hash == after.dataset_hash
    pairs = list(_pairs(before.examples, after.examples, is_same_data))
    changes = [change_of(example, other) for example, other in pairs]
    wanted = [
        (name, pair)
        for name, pair in zip(changes, pairs, strict=True)
        if (not change or name == change)
        and (not search or any(example.has(search.casefold()) for example in pair))
    ]
    return {
        "dataset": dataset,
        "a": _summary(a[0], before),
        "b": _summary(b[0], after),
        "summary": {
            **{name: changes.count(name) for name in CHANGES},
            "num_matched": len(pairs),
            "only_in_a": len(before.examples) - len(pairs),
            "only_in_b": len(after.examples) - len(pairs),
            "is_same_data": is_same_data,
        },
        "total": len(wanted),
        "examples": [
            _example(name, *pair, after.step) for name, pair in wanted[offset : offset + limit]
        ],
    }


def _pairs(
    before: Sequence[Example], after: Sequence[Example], is_same_data: bool
) -> list[tuple[Example, Example]]:
    def key(example: Example) -> Any:
        return example.example_id if is_same_data else (example.input, example.expected)

    others: dict[Any, Example] = {}
    for example in before:
        others.setdefault(key(example), example)
    return [(others.pop(key(example)), example) for example in after if key(example) in others]


def change_of(before: Example, after: Example) -> str:
    """Return the change between two answers, one of CHANGES; never right: in neither."""
    if after.is_right:
        return "still_right" if before.is_right else "newly_right"
    return "regressed" if before.is_right else "never_right"


def _summary(run: RunDir, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "step": snapshot.step,
        "timestamp": snapshot.timestamp,
        "dataset_hash": snapshot.dataset_hash,
        "summary": snapshot.summary,
    }


def _example(change: str, before: Example, after: Example, step: int) -> dict[str, Any]:
    return {
        "example_id": after.example_id,
        "step": step,
        "change": change,
        "input": after.input,
        "expected_output": after.expected,
        "words": word_diff(before.output, after.output),
        **{f"{key}_a": value for key, value in before.row().items()},
        **{f"{key}_b": value for key, value in after.row().items()},
    }
