"""The prefixes of launchers and collectors are stripped, and give the rank and the time."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from doctor.logs.prefix import strip

TEXT = "RuntimeError: no"
TABLE = tomllib.loads(Path(__file__).with_name("prefixes.toml").read_text(encoding="utf-8"))
PREFIXES: dict[str, int | None] = {**dict.fromkeys(TABLE["without"]), **TABLE["rank"]}


@pytest.mark.parametrize(("prefix", "rank"), PREFIXES.items())
def test_a_prefix_comes_off_and_tells_the_rank(prefix: str, rank: int | None) -> None:
    if prefix.startswith("gpu-07:4242"):  # NCCL's own, only before its own lines
        for line in ("NCCL WARN no", "include/alloc.h:178 NCCL WARN no"):
            assert (strip(prefix + line).text, strip(prefix + line).rank) == (line, 3)
        return
    found = strip(prefix + TEXT)
    assert (found.text, found.rank) == (TEXT, rank)


@pytest.mark.parametrize(
    "line",
    [
        '  File "train.py", line 3, in <module>',
        "ValueError: 3: no",
        "    return [0] + rest",
        "torch.OutOfMemoryError: CUDA out of memory",
        "Error: it is full",
        "exitcode  : -9 (pid: 4242)",
    ],
)
def test_what_is_no_prefix_stays(line: str) -> None:
    assert strip(line).text == line


def test_what_a_traceback_is_indented_by_stays() -> None:
    for prefix in ("[rank0]: ", "[default0]:", "0: ", "2026-11-21T10:00:00Z ", "Rank 0: "):
        assert strip(f'{prefix}  File "train.py", line 3').text == '  File "train.py", line 3'


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("2026-11-21 10:00:00,123 x", "2026-11-21 10:00:00,124 x"),
        ("2026-11-30T10:00:00Z x", "2026-12-01T09:00:00Z x"),
        ("W1121 10:00:00.123000 4242 a.py:1] x", "E1121 10:00:01.000000 4242 a.py:1] x"),
        ("Nov 30 10:00:00 host python[1]: x", "Dec  1 00:00:00 host python[1]: x"),
    ],
)
def test_stamps_of_a_kind_are_in_the_order_of_time(earlier: str, later: str) -> None:
    first, second = strip(earlier).time, strip(later).time
    assert first is not None
    assert second is not None
    assert first.kind == second.kind
    assert first.seconds < second.seconds
