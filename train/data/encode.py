"""Texts to token ids: prompts as they are served, answers as they continue in the joint text.

A tokenizer is not told where an answer begins. Encoded alone, a text may get a space in front
(SentencePiece's dummy prefix), and its first token may be another than in the whole. So the joint
text is encoded, and each prompt besides: a served model gets exactly the prompt's ids.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from train.chat.rendered import Answer, Rendered

_ENCODED_BYTES = 1 << 18  # at once: the tokenizer holds some hundred bytes per token


@dataclass(slots=True)
class Ids:
    """The token ids of a sample, and the begin and end of each range of them with loss."""

    ids: list[int]
    ranges: list[int]


class Encoder:
    """Encodes texts with a tokenizer, without adding special tokens: the template writes them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._hard = frozenset(number for number, token in added.items() if not token.normalized)

    def plain(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the ids of each text."""
        for some in _chunks(texts, list(map(len, texts))):
            for encoding in self._tokenizer.encode_batch_fast(some, add_special_tokens=False):
                yield encoding.ids

    def samples(self, texts: Sequence[Rendered]) -> Iterator[list[Ids]]:
        """Yield the samples of each text: one, unless a token spans the end of a prompt.

        The ids before the answers of a sample are those of its prompts, as they are served. An
        answer into which a token of its prompt reaches gets a sample of its own: in later prompts
        it would be encoded otherwise than it was trained.
        """
        for some in _chunks(texts, [len(part.text) for part in texts]):
            encodings = self._tokenizer.encode_batch(
                [part.text for part in some], add_special_tokens=False
            )
            joints = [
                _Joint(encoding, part, self._hard)
                for encoding, part in zip(encodings, some, strict=True)
            ]
            ends = iter(self.plain([text for joint in joints for text in joint.prompt_ends]))
            for part in joints:
                yield self._of(part, [next(ends) for _ in part.prompt_ends])

    def _of(self, joint: _Joint, prompt_ends: list[list[int]]) -> list[Ids]:
        clean, apart = Ids(joint.ids, []), []
        for answer, start, end in zip(
            joint.text.answers, joint.hard_starts, prompt_ends, strict=True
        ):
            begin = start + len(end)
            if joint.ids[start:begin] == end:
                clean.ranges += joint.ranges(answer, begin)
            else:
                apart.append(self._alone(joint, answer, start, end))
        if clean.ranges and apart:
            clean.ids = clean.ids[: clean.ranges[-1]]
        return [*([clean] if clean.ranges or not apart else []), *apart]

    def _alone(self, joint: _Joint, answer: Answer, start: int, end: list[int]) -> Ids:
        """Return the sample of an answer into which a token of its prompt reaches.

        The prompt is kept as it is served. What follows is encoded as if it went on, without a
        prefix, up to the next special token: from there on nothing depends on what is before.
        """
        last = joint.first_from(answer.end)
        hard = joint.first_from(answer.begin)
        while hard < last and joint.ids[hard] not in self._hard:
            hard += 1
        text_end = joint.place(hard)[0] if hard < last else answer.end
        text = joint.text.text[answer.begin : text_end]
        alone = self._going_on.encode(text, add_special_tokens=False)
        places = [
            *[(-1, -1)] * (start + len(end)),
            *((answer.begin + first, answer.begin + behind) for first, behind in alone.offsets),
            *map(joint.place, range(hard, last)),
        ]
        ids = [*joint.ids[:start], *end, *alone.ids, *joint.ids[hard:last]]
        return Ids(ids, _TokenPlaces(len(ids), places.__getitem__).ranges(answer, start + len(end)))

    @cached_property
    def _going_on(self) -> Any:
        """The tokenizer without what it would put before a text."""
        from tokenizers import Tokenizer

        described = json.loads(self._tokenizer.to_str())
        for stage in ("normalizer", "pre_tokenizer"):
            described[stage] = _without_prefix(described[stage])
        return Tokenizer.from_str(json.dumps(described))


class _TokenPlaces:
    """The places of tokens in a text: `place` returns where one begins and ends, in characters."""

    def __init__(self, num: int, place: Callable[[int], tuple[int, int]]) -> None:
        self.num, self.place = num, place

    def first_from(self, place: int) -> int:
        """Return the first token that begins at `place` or after it."""
        return bisect_left(range(self.num), place, key=lambda at: self.place(at)[0])

    def ranges(self, answer: Answer, begin: int) -> list[int]:
        """Return the ranges of tokens with loss of an answer whose first token is `begin`.

        As in transformers' masks of assistant tokens, a token has loss if a part of it has.
        """
        borders: list[int] = []
        for first, last in answer.loss:
            at = begin
            if first > answer.begin:
                at = self.first_from(first)
                if at and self.place(at - 1)[1] > first:
                    at -= 1
            at = max(at, begin, *borders[-1:])
            end = self.first_from(last)
            if borders and at == borders[-1] and end > at:
                borders[-1] = end
            elif end > at:
                borders += [at, end]
        return borders


class _Joint(_TokenPlaces):
    """A text as its tokenizer encodes it as a whole.

    `hard_starts` holds, for each answer, the last special token before it. Tokenizers cut there
    first, so the ids from there to the answer do not depend on what is before: to know the ids of a
    prompt it is enough to encode its end, `prompt_ends`.
    """

    def __init__(self, encoding: Any, text: Rendered, hard: frozenset[int]) -> None:
        self.text, self.ids = text, encoding.ids
        super().__init__(len(self.ids), encoding.token_to_chars)
        self.hard_starts, self.prompt_ends = [], []
        for answer in text.answers:
            at = self.first_from(answer.begin) - 1
            while at > 0 and (self.ids[at] not in hard or self.place(at)[1] > answer.begin):
                at -= 1
            at = max(0, at)
            begin = self.place(at)[0] if at else 0
            self.hard_starts.append(at)
            self.prompt_ends.append(text.text[begin : answer.begin])


def _chunks(items: Sequence[Any], sizes: Sequence[int]) -> Iterator[Sequence[Any]]:
    """Yield consecutive items whose sizes come to some hundred kilobytes."""
    cuts, size = [0], 0
    for i, more in enumerate(sizes):
        size += more
        if size >= _ENCODED_BYTES:
            cuts.append(i + 1)
            size = 0
    if cuts[-1] < len(items):
        cuts.append(len(items))
    for begin, end in pairwise(cuts):
        yield items[begin:end]


def _without_prefix(stage: Any) -> Any:
    """Return a normalizer or a pre-tokenizer, as in tokenizer.json, that puts nothing in front."""
    if not isinstance(stage, dict):
        return stage
    if stage["type"] == "Prepend":
        return None
    for key in ("normalizers", "pretokenizers"):
        if key in stage:
            kept = [_without_prefix(step) for step in stage[key]]
            return stage | {key: [step for step in kept if step is not None]}
    if stage["type"] == "Metaspace":
        return stage | {"prepend_scheme": "never"}
    return stage | ({"add_prefix_space": False} if "add_prefix_space" in stage else {})
