"""Samples on their way from rows to a file: what they are, and how they are written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa

from train.bad_row import BadRowError
from train.messages import Conversation
from train.readers import Block
from train.recipe import Counts
from train.rows import Example

# loss_ranges: begin and end, begin and end, … of the tokens with loss. Texts are for people, and
# there where answers will be compared.
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_ranges", pa.list_(pa.int32())),
        ("prompt", pa.string()),
        ("response", pa.string()),
    ]
)


@dataclass(slots=True)
class Sample:
    """Tokens, where they have loss, and what they were made of, the row at place `row`."""

    ids: list[int]
    ranges: list[int]
    example: Example
    is_held_out: bool = False
    row: int = 0


@dataclass(slots=True)
class Tokenised:
    """What a block has become, held-out samples apart; `bad` has each place with its reason."""

    block: Block
    train: pa.RecordBatch
    held_out: pa.RecordBatch
    counts: Counts
    hashes: np.ndarray
    seen: set[str] = field(default_factory=set)
    bad: list[tuple[int, BadRowError]] = field(default_factory=list)
    longest: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Encoded:
    """What rows have become: samples, digests of contents, bad rows' places with the reason.

    `seen` are the columns that have something in them, and `column[].key` of messages; `longest`
    are the lengths of the longest samples, in tokens, each with its row's place.
    """

    samples: list[Sample] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    digests: list[bytes] = field(default_factory=list)
    bad: list[tuple[int, BadRowError]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    longest: list[tuple[int, int]] = field(default_factory=list)


def batch_of(samples: Sequence[Sample], *, with_texts: bool) -> pa.RecordBatch:
    """Samples as they are written to a file."""
    texts = [texts_of(one.example) if with_texts else (None, None) for one in samples]
    return pa.record_batch(
        [
            _lists([one.ids for one in samples]),
            _lists([one.ranges for one in samples]),
            pa.array([one for one, _ in texts], pa.string()),
            pa.array([one for _, one in texts], pa.string()),
        ],
        schema=SCHEMA,
    )


def texts_of(example: Example) -> tuple[str, str]:
    """(what the last answer is an answer to, the last answer); of a text nothing is asked."""
    if isinstance(example, str):
        return "", example
    if not isinstance(example, Conversation):
        *before, (last, _) = example
        return "".join(text for text, _ in before), last
    *_, asked, answer = ["", *(one["content"] for one in example.messages)]
    return asked, answer


def digest_of(example: Example) -> bytes:
    """Eight bytes of the content."""
    if isinstance(example, str):
        text = example
    elif isinstance(example, Conversation):
        parts = [part for one in example.messages for part in (one["role"], one["content"])]
        more = [one["tool_calls"] for one in example.messages if "tool_calls" in one]
        if more or example.tools or example.without_loss:  # of most there is none of it
            parts.append(json.dumps([more, example.tools, sorted(example.without_loss)]))
        text = "\0".join(parts)
    else:
        text = json.dumps(example)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()


def _lists(rows: list[list[int]]) -> pa.ListArray:
    """As pa.array makes it, ten times as fast."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    values = np.fromiter(chain.from_iterable(rows), np.int32, int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values))
