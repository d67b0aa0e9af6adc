"""Samples on their way from rows to a file: their types, counts and format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from rundir.config import RunConfig
from train.chat.bad_row import BadRowError
from train.chat.messages import ChatExample
from train.data.rows import Example

# loss_ranges: begin and end, begin and end, … of the tokens with loss. The texts are for people,
# and only present where answers will be compared. The number of a row, in the file with that place
# among the data's files, is for people too: it names a sample that something is wrong with.
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_ranges", pa.list_(pa.int32())),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("row", pa.int64()),
        ("source", pa.int32()),
    ]
)
_MAIN_KEYS = ("role", "content", "tool_calls")  # of messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings that turn rows into samples, all part of a cache key. Lengths are in tokens."""

    max_seq_length: int
    max_samples: int = 0
    columns: str = ""
    only_where: str = ""
    loss_on: Literal["answers", "last_answer"] = "answers"
    chat_template: str = ""  # the path of a file
    template_options: str = ""
    on_long_row: Literal["drop", "truncate", "split"] = "drop"
    on_bad_row: Literal["stop", "skip"] = "stop"
    eval_fraction: float = 0.0
    seed: int = 0
    with_texts: bool = False


@dataclass(slots=True)
class Counts:
    """Counts of rows and samples; lengths are in tokens."""

    num_rows: int = 0
    num_bad: int = 0
    num_unwanted: int = 0  # excluded by data.only_where
    num_too_long: int = 0
    num_truncated: int = 0
    num_split: int = 0
    num_rewritten: int = 0  # conversations that became several samples
    num_unasked: int = 0  # answers without loss, as nobody asks for them
    num_own_marks: int = 0  # texts and answers with an own begin or end token
    longest: int = 0
    longest_kept: int = 0
    max_token_id: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another block."""
        for name in self.__slots__:
            mine, others = getattr(self, name), getattr(other, name)
            is_most = name.startswith(("longest", "max"))
            setattr(self, name, max(mine, others) if is_most else mine + others)


@dataclass(slots=True)
class Sample:
    """Token ids, the ranges of them with loss, the example they come from, and its row's index."""

    ids: list[int]
    ranges: list[int]
    example: Example
    is_held_out: bool = False
    row: int = 0


@dataclass(slots=True)
class Encoded:
    """The result of some rows: samples, content digests, and positions of bad rows with the reason.

    `seen` holds the columns that have a value, and `column[].key` for messages; `longest` the
    lengths of the longest samples, in tokens, each with the position of its row; `held_out_rows`
    those rows as lines of JSON.
    """

    samples: list[Sample] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    digests: bytearray = field(default_factory=bytearray)
    bad: list[tuple[int, BadRowError]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    longest: list[tuple[int, int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of all rows, in their files
    held_out_rows: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tokenised:
    """The samples of a block as they are written to files, and what `encoded` says of its rows."""

    path: Path
    at_bytes: int  # of the file, read so far
    train: pa.RecordBatch
    held_out: pa.RecordBatch
    encoded: Encoded


def batch_of(
    samples: Sequence[Sample], numbers: Sequence[int], *, with_texts: bool
) -> pa.RecordBatch:
    """Return samples as they are written to a file, but for its `source`; `numbers` are of rows."""
    texts = [texts_of(sample.example) if with_texts else (None, None) for sample in samples]
    return pa.record_batch(
        [
            _lists([sample.ids for sample in samples]),
            _lists([sample.ranges for sample in samples]),
            pa.array([part for part, _ in texts], pa.string()),
            pa.array([part for _, part in texts], pa.string()),
            pa.array([numbers[sample.row] for sample in samples], pa.int64()),
            pa.nulls(len(samples), pa.int32()),
        ],
        schema=SCHEMA,
    )


def texts_of(example: Example) -> tuple[str, str]:
    """Return (what the last answer responds to, the last answer); a plain text has no prompt."""
    if isinstance(example, str):
        return "", example
    if not isinstance(example, ChatExample):
        *before, (last, _) = example
        return "".join(text for text, _ in before), last
    *_, prompt, answer = ["", *(message["content"] for message in example.messages)]
    return prompt, answer


def digest_of(example: Example) -> bytes:
    """Return a digest of the content, in eight bytes."""
    if isinstance(example, str):
        text = example
    elif isinstance(example, ChatExample):
        parts = [
            part for message in example.messages for part in (message["role"], message["content"])
        ]
        more = [message["tool_calls"] for message in example.messages if "tool_calls" in message]
        if more or example.tools or example.without_loss:  # most have none of these
            parts.append(json.dumps([more, example.tools, sorted(example.without_loss)]))
        # Reasoning, names, ids of calls. Without them the digest is that of earlier versions, so
        # that the same rows are held out.
        rest = [
            {key: value for key, value in message.items() if key not in _MAIN_KEYS}
            for message in example.messages
        ]
        if any(rest):
            parts.append(json.dumps(rest, sort_keys=True))
        text = "\0".join(parts)
    else:
        text = json.dumps(example)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()


def _lists(rows: list[list[int]]) -> pa.ListArray:
    """Return the array that pa.array would make, ten times as fast."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    values = np.fromiter(chain.from_iterable(rows), np.int32, int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values))


def recipes(config: RunConfig) -> tuple[Recipe, Recipe]:
    """Return the recipes for training data and for held-out data."""
    data = config.data
    evaluation = Recipe(
        max_seq_length=data.max_seq_length,
        columns=data.columns,
        only_where=data.only_where,
        loss_on=data.loss_on,
        chat_template=data.chat_template,
        template_options=data.template_options,
        on_long_row=data.on_long_row,
        on_bad_row=data.on_bad_row,
        with_texts=True,
    )
    training = replace(
        evaluation,
        with_texts=False,
        max_samples=data.max_samples,
        eval_fraction=data.held_out_share,
        # The seed changes the data only if it decides what is held out.
        seed=config.train.seed if data.held_out_share else 0,
    )
    return training, evaluation
