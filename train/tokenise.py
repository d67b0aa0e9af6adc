"""Blocks of rows to blocks of tokens: all that is done to a row, in whatever process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rundir.errors import UserError
from train.bad_row import BadRowError
from train.columns import LINES, Columns, find_columns
from train.readers import Block, Raw
from train.rows import Example, example_of, parsed
from train.template import Part, Template

_ENCODED_BYTES = 1 << 18  # at once: the tokenizer holds some hundred bytes for each token

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What becomes of rows; all of it is part of a cache's key. Lengths are in tokens."""

    max_seq_length: int
    max_samples: int = 0
    columns: str = ""
    on_long_row: Literal["drop", "split"] = "drop"
    on_bad_row: Literal["stop", "skip"] = "stop"
    eval_fraction: float = 0.0
    seed: int = 0
    with_texts: bool = False


@dataclass(slots=True)
class Sample:
    """Tokens, where they have loss, and what they were made of, the row at place `row`."""

    ids: list[int]
    ranges: list[int]
    example: Example
    is_held_out: bool = False
    row: int = 0


@dataclass(slots=True)
class Counts:
    """Of rows and samples; lengths are in tokens."""

    num_rows: int = 0
    num_bad: int = 0
    num_too_long: int = 0
    num_split: int = 0
    num_rewritten: int = 0  # conversations that became a sample for each answer
    longest: int = 0
    longest_kept: int = 0
    max_token_id: int = 0

    def add(self, other: Counts) -> None:
        """Take in those of another block."""
        for name in self.__slots__:
            mine, others = getattr(self, name), getattr(other, name)
            is_most = name.startswith(("longest", "max"))
            setattr(self, name, max(mine, others) if is_most else mine + others)


@dataclass(slots=True)
class Tokenised:
    """What a block has become, held-out samples apart; `bad` has each place with its reason."""

    block: Block
    train: pa.RecordBatch
    held_out: pa.RecordBatch
    counts: Counts
    hashes: np.ndarray
    bad: list[tuple[int, BadRowError]] = field(default_factory=list)


@dataclass(slots=True)
class Encoded:
    """What rows have become: samples, digests of contents, bad rows' places with the reason."""

    samples: list[Sample] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    digests: list[bytes] = field(default_factory=list)
    bad: list[tuple[int, BadRowError]] = field(default_factory=list)


class Tokeniser:
    """Turns blocks into tokens by a recipe."""

    def __init__(
        self, tokenizer: Any, template: Template, recipe: Recipe, columns: Columns
    ) -> None:
        self._tokenizer, self._template, self._recipe = tokenizer, template, recipe
        self._columns = columns
        self._lead = template.leading_ids(tokenizer, of_text=columns.kind == "text")
        end = template.text_end_id(tokenizer)
        self._text_end = [] if end is None else [end]

    def __call__(self, block: Block) -> Tokenised:
        """All samples of a block, as they are written to files."""
        made = self.encoded(block)
        return Tokenised(
            # The rows themselves have had their use.
            Block(block.path, [], [], block.at_bytes),
            self._batch(
                [one for one in made.samples if not one.is_held_out], self._recipe.with_texts
            ),
            self._batch([one for one in made.samples if one.is_held_out], with_texts=True),
            made.counts,
            np.frombuffer(b"".join(made.digests), dtype=np.uint64),
            made.bad,
        )

    def encoded(self, rows: Iterable[tuple[int, Raw]]) -> Encoded:
        """All samples of rows with their places."""
        done = Encoded()
        made: list[Sample] = []
        parts: list[list[Part]] = []
        for row, (number, raw) in enumerate(rows):
            done.counts.num_rows += 1
            try:
                example = example_of(parsed(raw), self._columns)
                found = self._parts(example)
            except BadRowError as error:
                done.counts.num_bad += 1
                done.bad.append((number, error))
                continue
            digest = _digest(example)
            done.digests.append(digest)
            is_held_out = self._is_held_out(digest)
            done.counts.num_rewritten += len(found) > 1
            parts += found
            made += [Sample(list(self._lead), [], example, is_held_out, row) for _ in found]
        self._encode(made, parts)
        done.samples = [one for sample in made for one in self._fitting(sample, done.counts)]
        return done

    def _parts(self, example: Example) -> list[list[Part]]:
        if isinstance(example, str):
            return [[(example, True)]]
        try:
            return self._template.conversation(example)
        except UserError as error:
            raise BadRowError(f"cannot be put into words: {error.args[0]}", do=error.do) from error

    def _is_held_out(self, digest: bytes) -> bool:
        """The same for the same content and seed, whatever else is in the data."""
        if not self._recipe.eval_fraction:
            return False
        key = str(self._recipe.seed).encode()
        seeded = hashlib.blake2b(digest, digest_size=8, key=key)
        return int.from_bytes(seeded.digest(), "big") < self._recipe.eval_fraction * 2**64

    def _encode(self, samples: list[Sample], parts: list[list[Part]]) -> None:
        """Put the tokens of each sample's parts into it."""
        ids = self._ids([text for some in parts for text, _ in some])
        for sample, some in zip(samples, parts, strict=True):
            for _, is_answer in some:
                begin = len(sample.ids)
                sample.ids += next(ids)
                if isinstance(sample.example, str):
                    begin, sample.ids = 0, sample.ids + self._text_end
                if is_answer:
                    sample.ranges += [begin, len(sample.ids)]

    def _ids(self, texts: list[str]) -> Iterator[list[int]]:
        """The template has written the special tokens; adding them again would double them."""
        start, size = 0, 0
        for i, text in enumerate(texts):
            size += len(text)
            if size >= _ENCODED_BYTES or i == len(texts) - 1:
                some = texts[start : i + 1]
                for encoding in self._tokenizer.encode_batch_fast(some, add_special_tokens=False):
                    yield encoding.ids
                start, size = i + 1, 0

    def _fitting(self, sample: Sample, counts: Counts) -> list[Sample]:
        length, limit = len(sample.ids), self._recipe.max_seq_length
        counts.longest = max(counts.longest, length)
        counts.max_token_id = max(counts.max_token_id, max(sample.ids, default=0))
        if length <= limit:
            counts.longest_kept = max(counts.longest_kept, length)
            return [sample]
        if self._recipe.on_long_row == "drop":
            counts.num_too_long += 1
            return []
        counts.num_split += 1
        counts.longest_kept = limit
        pieces = [sample.ids[start : start + limit] for start in range(0, length, limit)]
        return [
            Sample(one, [0, len(one)], sample.example, sample.is_held_out, sample.row)
            for one in pieces
            if len(one) > 1  # a token alone predicts none
        ]

    def _batch(self, samples: list[Sample], with_texts: bool) -> pa.RecordBatch:
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
    return example[-2]["content"] if len(example) > 1 else "", example[-1]["content"]


def _lists(rows: list[list[int]]) -> pa.ListArray:
    """As pa.array makes it, ten times as fast."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    values = np.fromiter(chain.from_iterable(rows), np.int32, int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values))


def _digest(example: Example) -> bytes:
    """Eight bytes of the content."""
    text = example
    if not isinstance(text, str):
        text = "\0".join(part for one in text for part in (one["role"], one["content"]))
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def columns_of(block: Block, named: str) -> Columns:
    """The columns that the first row has that can be read."""
    for _, raw in block:
        try:
            row = parsed(raw)
        except BadRowError:
            continue
        return find_columns(row, named)
    return LINES
