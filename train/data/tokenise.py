"""Blocks of rows to blocks of tokens: everything that is done to a row, in any process."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from typing import Any

from rundir.errors import UserError
from train.chat.bad_row import BadRowError
from train.chat.cell_values import decoded
from train.chat.messages import ChatExample
from train.chat.rendered import Rendered, segments_text
from train.chat.template import Rendering, Template
from train.data.columns import Columns
from train.data.encode import Encoder, Ids
from train.data.formats.format import Block, Raw
from train.data.rows import Example, example_of, json_line, parsed
from train.data.samples import Counts, Encoded, Recipe, Sample, Tokenised, batch_of, digest_of

NUM_LONGEST = 3  # longest rows that are named


# A row's text on its way to tokens, with its example, whether it is held out, and its index.
_Text = tuple[str | list[Rendered], Example, bool, int]


class Tokeniser:
    """Turns blocks into tokens by a recipe."""

    def __init__(
        self, tokenizer: Any, template: Template, recipe: Recipe, columns: Columns
    ) -> None:
        self._encoder, self._template, self._recipe = Encoder(tokenizer), template, recipe
        self._columns = columns
        self._lead = template.leading_ids(tokenizer, of_text=columns.kind in ("text", "segments"))
        end = template.text_end_id(tokenizer)
        self._text_end = [] if end is None else [end]

    def __call__(self, block: Block) -> Tokenised:
        """Return all samples of a block, as they are written to files."""
        made = self.encoded(block)
        train, held_out = (
            batch_of(
                [sample for sample in made.samples if sample.is_held_out == is_held_out],
                made.numbers,
                with_texts=is_held_out or self._recipe.with_texts,
            )
            for is_held_out in (False, True)
        )
        made.samples, made.numbers = [], []  # no longer needed, and sent to another process
        return Tokenised(block.path, block.at_bytes, train, held_out, made)

    def encoded(self, rows: Iterable[tuple[int, Raw]]) -> Encoded:
        """Return all samples of rows, which come with their positions."""
        done = Encoded()
        texts: list[_Text] = []
        numbers = done.numbers
        for row, (number, raw) in enumerate(rows):
            numbers.append(number)
            done.counts.num_rows += 1
            try:
                cells = parsed(raw)
                example = example_of(
                    cells,
                    self._columns,
                    only_where=self._recipe.only_where,
                    only_last=self._recipe.loss_on == "last_answer",
                )
                if example is None:
                    done.counts.num_unwanted += 1
                    continue
                written = self._written(example, done.counts)
            except BadRowError as error:
                done.counts.num_bad += 1
                done.bad.append((number, error))
                continue
            _note_columns(cells, self._columns, done.seen)
            digest = digest_of(example)
            done.digests += digest
            is_held_out = self._is_held_out(digest)
            if is_held_out:
                done.held_out_rows.append(json_line(cells))
            texts.append((written, example, is_held_out, row))
        made = self._encode(texts, done.counts)
        lengths = ((len(sample.ids), numbers[sample.row]) for sample in made)
        done.longest = heapq.nlargest(NUM_LONGEST, lengths)
        done.samples = [part for sample in made for part in self._fitting(sample, done.counts)]
        return done

    def _written(self, example: Example, counts: Counts) -> str | list[Rendered]:
        """Return a plain text as it is, anything else with its answers."""
        if isinstance(example, str):
            return example
        try:
            if isinstance(example, ChatExample):
                written = self._template.conversation(example)
            else:
                written = Rendering([segments_text(example)])
            for text in written.texts:
                text.text.encode()
        except UserError as error:
            raise BadRowError(
                f"cannot be rendered by the chat template: {error.args[0]}", do=error.do
            ) from error
        except UnicodeEncodeError as error:  # in a thought, a call or a tool: JSON can express it
            raise BadRowError("has a lone surrogate (half of a character)") from error
        counts.num_unasked += written.num_unasked
        counts.num_own_marks += written.has_own_end
        return written.texts

    def _is_held_out(self, digest: bytes) -> bool:
        """Return whether a row is held out, which depends only on its content and the seed."""
        if not self._recipe.eval_fraction:
            return False
        key = str(self._recipe.seed).encode()
        seeded = hashlib.blake2b(digest, digest_size=8, key=key)
        return int.from_bytes(seeded.digest(), "big") < self._recipe.eval_fraction * 2**64

    def _encode(self, texts: list[_Text], counts: Counts) -> list[Sample]:
        """Return the samples of all texts, in order."""
        plain = self._encoder.plain([text for text, *_ in texts if isinstance(text, str)])
        parts = self._encoder.samples(
            [part for text, *_ in texts if not isinstance(text, str) for part in text]
        )
        made: list[Sample] = []
        for text, example, is_held_out, row in texts:
            if isinstance(text, str):
                ids = self._with_ends(text, next(plain), counts)
                made.append(Sample(ids, [0, len(ids)], example, is_held_out, row))
                continue
            samples = [sample for _ in text for sample in next(parts)]
            counts.num_rewritten += len(samples) > 1
            for sample in samples:
                self._lead_in(sample, counts)
                made.append(Sample(sample.ids, sample.ranges, example, is_held_out, row))
        return made

    def _with_ends(self, text: str, ids: list[int], counts: Counts) -> list[int]:
        """Return a text's ids with begin and end tokens, unless it has them itself."""
        has_lead = bool(self._lead) and ids[:1] == self._lead
        has_end = self._template.ends_text(text)
        if has_lead or has_end:
            counts.num_own_marks += 1
        return [*([] if has_lead else self._lead), *ids, *([] if has_end else self._text_end)]

    def _lead_in(self, sample: Ids, counts: Counts) -> None:
        """Put the begin token before a sample without a template, unless it has it itself."""
        if not self._lead:
            return
        if sample.ids[:1] == self._lead:
            counts.num_own_marks += 1
            return
        sample.ids = [*self._lead, *sample.ids]
        sample.ranges = [at + len(self._lead) for at in sample.ranges]

    def _fitting(self, sample: Sample, counts: Counts) -> list[Sample]:
        length, limit = len(sample.ids), self._recipe.max_seq_length
        counts.longest = max(counts.longest, length)
        counts.max_token_id = max(counts.max_token_id, max(sample.ids, default=0))
        if length <= limit:
            counts.longest_kept = max(counts.longest_kept, length)
            return [sample]
        if self._recipe.on_long_row == "split":
            counts.num_split += 1
            counts.longest_kept = limit
            return _split(sample, limit)
        ranges = _within(sample.ranges, limit)
        if self._recipe.on_long_row == "drop" or not ranges:
            counts.num_too_long += 1
            return []
        counts.num_truncated += 1
        counts.longest_kept = limit
        sample.ids, sample.ranges = sample.ids[:limit], ranges
        return [sample]


def _split(sample: Sample, limit: int) -> list[Sample]:
    """Return a text in pieces; a single token predicts nothing and is dropped."""
    pieces = [sample.ids[start : start + limit] for start in range(0, len(sample.ids), limit)]
    return [
        Sample(piece, [0, len(piece)], sample.example, sample.is_held_out, sample.row)
        for piece in pieces
        if len(piece) > 1
    ]


def _within(ranges: list[int], limit: int) -> list[int]:
    """Return the parts of the ranges with loss that are among the first `limit` tokens."""
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return [bound for begin, end in pairs if begin < limit for bound in (begin, min(end, limit))]


def _note_columns(row: Any, columns: Columns, seen: set[str]) -> None:
    """Add columns and keys with a value to `seen`, so that nothing is ignored silently."""
    if not isinstance(row, dict):
        return
    seen.update(name for name, value in row.items() if value not in (None, "", [], {}))
    for name in columns.names if columns.kind in ("pair", "messages") else ():
        content = decoded(row[name]) if columns.kind == "messages" else row[name]
        if isinstance(content, list):
            keys = set[str]().union(
                *(message.keys() for message in content if isinstance(message, dict))
            )
            seen.update(f"{name}[].{key}" for key in keys)
