"""Samples as text, with marks around what has loss: the quickest way to see a wrong mask."""

from __future__ import annotations

from typing import Any

from rundir.prepared import PreparedData
from train.data import SampleFile

NUM_SHOWN = 3
_SHORT = 160  # characters of one on the console
BEGIN, END = "[[", "]]"


def preview(prepared: PreparedData, tokenizer: Any) -> list[str]:
    """The first samples decoded, special tokens and all."""
    samples = SampleFile(prepared)
    return [marked(*samples[i], tokenizer=tokenizer) for i in range(min(NUM_SHOWN, len(samples)))]


def marked(tokens: Any, ranges: Any, *, tokenizer: Any) -> str:
    """The text of a sample, what has loss in double brackets."""
    parts, done = [], 0
    for begin, end in ranges:
        before, answer = (
            tokenizer.decode(some.tolist(), skip_special_tokens=False)
            for some in (tokens[done:begin], tokens[begin:end])
        )
        parts += [before, BEGIN, answer, END]
        done = end
    rest = tokenizer.decode(tokens[done:].tolist(), skip_special_tokens=False)
    return "".join([*parts, rest])


def short(text: str) -> str:
    """The text on one line, its middle left out; nothing in it can move a terminal's cursor."""
    line = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
    half = _SHORT // 2
    return line if len(line) <= _SHORT else f"{line[:half]} … {line[-half:]}"
