"""What tests of the benchmarks share with those of the trainer: one thread for small matrices."""

from __future__ import annotations

from tests.train.conftest import one_thread

__all__ = ["one_thread"]  # used by every test
