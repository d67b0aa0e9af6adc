"""What is to become of rows, and what has become of them, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What becomes of rows; all of it is part of a cache's key. Lengths are in tokens."""

    max_seq_length: int
    max_samples: int = 0
    columns: str = ""
    only_where: str = ""
    loss_on: Literal["answers", "last_answer"] = "answers"
    chat_template: str = ""  # a file
    template_options: str = ""
    on_long_row: Literal["drop", "truncate", "split"] = "drop"
    on_bad_row: Literal["stop", "skip"] = "stop"
    eval_fraction: float = 0.0
    seed: int = 0
    with_texts: bool = False


@dataclass(slots=True)
class Counts:
    """Of rows and samples; lengths are in tokens."""

    num_rows: int = 0
    num_bad: int = 0
    num_unwanted: int = 0  # by data.only_where
    num_too_long: int = 0
    num_truncated: int = 0
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
