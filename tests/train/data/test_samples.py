"""The digest of a row's content, which duplicates and held-out rows are known by."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import pytest

from train.data.columns import Columns
from train.data.rows import example_of
from train.data.samples import digest_of

COLUMNS = Columns("messages", ("messages",))


def digest(*messages: dict[str, Any]) -> bytes:
    example = example_of({"messages": list(messages)}, COLUMNS)
    assert example is not None
    return digest_of(example)


ASKED = {"role": "user", "content": "2 + 5"}
ANSWERED = {"role": "assistant", "content": "7"}


@pytest.mark.parametrize(
    ("place", "key"), [(1, "reasoning_content"), (1, "thinking"), (0, "name"), (1, "tool_call_id")]
)
def test_rows_that_differ_in_anything_that_a_template_may_write_are_no_duplicates(
    place: int, key: str
) -> None:
    digests = []
    for more in ({}, {key: "one"}, {key: "two"}):
        row = [ASKED, ANSWERED]
        row[place] = row[place] | more
        digests.append(digest(*row))
    assert len(set(digests)) == 3
    assert digest(*row) == digests[-1]


def test_the_same_words_of_another_kind_or_of_another_message_are_no_duplicate() -> None:
    by_kind = [{"name": "one"}, {"tool_call_id": "one"}, {"thinking": "one"}]
    by_place = [(ASKED | {"name": "one"}, ANSWERED), (ASKED, ANSWERED | {"name": "one"})]
    digests = [digest(ASKED, ANSWERED | more) for more in by_kind]
    digests += [digest(*row) for row in by_place]
    assert len(set(digests)) == 4  # the last row is the first one again


def test_a_row_without_these_has_the_digest_that_it_has_always_had() -> None:
    """The choice of held-out rows depends on it."""
    text = "user\0002 + 5\0assistant\0007"
    assert digest(ASKED, ANSWERED) == blake2b(text.encode(), digest_size=8).digest()
    called = {"function": {"name": "f", "arguments": {"a": 1}}}
    with_calls = (ASKED, {"role": "assistant", "content": "", "tool_calls": [called]}, ANSWERED)
    assert digest(*with_calls).hex() == "64e40ed021c2886c"
