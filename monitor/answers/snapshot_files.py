"""One snapshot of answers, read from a run folder and checked: whoever wrote it is not trusted.

docs/evolution.md describes the file. What is no text becomes text, what is no number None.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from monitor.http.json_api import NotFoundError
from monitor.runs.inside import inside, names_inside
from rundir.events import finite
from rundir.paths import RunDir

MOST_BYTES = 8 << 20  # of one snapshot: comparing two takes about 60 MB
_FOLDER = "evolution"
_FILE = re.compile(r"step_([0-9]{8,12})\.json")
_SHOWN = 6  # of the first steps, and of the last, in an error
_NAMES_OF_NO_NUMBER = ("nan", "inf", "-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One prompt and the model's answer."""

    example_id: int  # its number in the held-out data
    input: str
    expected: str
    output: str
    is_right: bool  # the answer is exactly the expected one
    similarity: float | None  # 0 to 1
    loss: float | None  # of the expected answer; may be NaN
    length: int  # characters of the answer

    def has(self, text: str) -> bool:
        """Return whether the prompt or an answer has `text`, which is casefolded."""
        return any(text in part.casefold() for part in (self.input, self.expected, self.output))

    def row(self) -> dict[str, Any]:
        """Return the answer and what it was worth, as JSON can hold it."""
        return {
            "model_output": self.output,
            "exact_match": self.is_right,
            "similarity": finite(self.similarity),
            "loss": finite(self.loss),
            "output_length": self.length,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All answers after one step."""

    step: int
    timestamp: str
    dataset_hash: str  # "" if the snapshot has none
    summary: dict[str, Any]
    cost: dict[str, Any]
    left_out_steps: list[int]  # due since the snapshot before, and not taken
    examples: list[Example] = field(repr=False)


def datasets_of(run: RunDir) -> list[str]:
    """Return the names of a run's data sets that have a snapshot, sorted."""
    return [name for name in names_inside(run, _FOLDER) if any(_steps(run, name))]


def steps_of(run: RunDir, dataset: str) -> list[int]:
    """Return the steps of all snapshots, in order. Raises NotFoundError if there is none."""
    steps = sorted(_steps(run, dataset))
    if not steps:
        names = ", ".join(datasets_of(run)) or "none yet"
        raise NotFoundError(
            f"{run.run_id} has no answers to {dataset!r}; it has: {names}",
            "api/evolution/datasets lists those of all runs",
        )
    return steps


def _steps(run: RunDir, dataset: str) -> Iterator[int]:
    for name in names_inside(run, _FOLDER, dataset):
        match = _FILE.fullmatch(name)
        if match and name == parts_of(run, dataset, int(match[1]))[-1]:
            yield int(match[1])


def parts_of(run: RunDir, dataset: str, step: int) -> tuple[str, str, str]:
    """Return the parts of a snapshot's path below the run folder."""
    return _FOLDER, dataset, run.evolution("", step).name


def raw_snapshot(run: RunDir, dataset: str, step: int) -> tuple[bytes, dict[str, Any]]:
    """Return a snapshot's bytes, strict JSON, and what they hold.

    Raises NotFoundError if it is not there, too large, or no snapshot: that names those there are.
    """
    steps = steps_of(run, dataset)
    if step not in steps:
        raise NotFoundError(
            f"{run.run_id} has no answers to {dataset!r} after step {step}",
            f"there are those after {_some(steps)}",
        )
    name = "/".join(parts_of(run, dataset, step))
    with inside(run, *parts_of(run, dataset, step)) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise NotFoundError(
                f"{name} has {size >> 20} MiB, and at most {MOST_BYTES >> 20} MiB are read",
                "read the file itself, in the run folder; train.evolution_prompts, or with "
                "train.eval_generate data.max_eval_samples, makes it smaller",
            )
        data = file.read(MOST_BYTES)
    return _checked(name, data)


def _checked(name: str, data: bytes) -> tuple[bytes, dict[str, Any]]:
    odd: list[str] = []

    def number(text: str) -> float | str:
        value = float(text)
        if math.isfinite(value):
            return value
        odd.append(text)
        return str(value)

    try:
        content = json.loads(data.decode("utf-8"), parse_float=number, parse_constant=number)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise NotFoundError(f"{name} is no whole snapshot: {why}", "take another step") from error
    if not isinstance(content, dict) or not isinstance(content.get("examples"), list):
        raise NotFoundError(f"{name} is no snapshot: it has no examples", "take another step")
    return (json.dumps(content).encode() if odd else data), content


def read_snapshot(run: RunDir, dataset: str, step: int) -> Snapshot:
    """Return a snapshot. Raises NotFoundError as `raw_snapshot` does."""
    _, content = raw_snapshot(run, dataset, step)
    dataset_told, left_out = _table(content.get("dataset")), content.get("left_out_steps")
    return Snapshot(
        step=step,
        timestamp=text_of(content.get("timestamp")),
        dataset_hash=text_of(dataset_told.get("hash")),
        summary=_table(content.get("summary")),
        cost=_table(content.get("cost")),
        left_out_steps=[
            number
            for number in (left_out if isinstance(left_out, list) else [])
            if isinstance(number, int)
        ],
        examples=_examples(content["examples"]),
    )


def _examples(rows: list[Any]) -> list[Example]:
    """Return the examples; of two with the same number the first one counts."""
    examples: dict[int, Example] = {}
    for position, row in enumerate(rows):
        if not isinstance(row, dict):
            continue
        number = row.get("example_id")
        example_id = position
        if isinstance(number, int) and not isinstance(number, bool) and abs(number) < 1 << 53:
            example_id = number
        if example_id not in examples:
            examples[example_id] = _example(row, example_id)
    return [examples[number] for number in sorted(examples)]


def _example(row: dict[str, Any], example_id: int) -> Example:
    output = text_of(row.get("model_output"))
    return Example(
        example_id=example_id,
        input=text_of(row.get("input")),
        expected=text_of(row.get("expected_output")),
        output=output,
        is_right=row.get("exact_match") is True,
        similarity=number_of(row.get("similarity")),
        loss=number_of(row.get("loss")),
        length=len(output),
    )


def text_of(value: Any) -> str:
    """Return a value as text that UTF-8 can hold; nothing as ""."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", errors="replace").decode("utf-8")


def number_of(value: Any) -> float | None:
    """Return a number, which may be NaN or infinite; None if it is none."""
    if isinstance(value, str) and value.lower() in _NAMES_OF_NO_NUMBER:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _some(steps: list[int]) -> str:
    shown = [str(step) for step in steps]
    if len(steps) > 2 * _SHOWN + 2:
        shown = [*shown[:_SHOWN], "…", *shown[-_SHOWN:]]
    return ("step " if len(steps) == 1 else "steps ") + ", ".join(shown)
