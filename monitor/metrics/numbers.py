"""Numbers of events as the index keeps them: doubles, with one that means "no value"."""

from __future__ import annotations

import array
import math
import struct
from typing import Any

# A NaN of our own: the event has a null there, or not that field. An event's own NaN is another.
MISSING_BITS = 0x7FF8_0000_A112_10C0
MISSING: float = struct.unpack("<d", struct.pack("<Q", MISSING_BITS))[0]
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # as in events
_MOST = 2.0**53  # beyond it doubles are no whole numbers
_LARGEST = 1 << 1023  # that a double can be


def number(value: Any) -> float:
    """Return the value of a field as a double; MISSING for what is no number."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < _LARGEST else (math.inf if value > 0 else -math.inf)
    if type(value) is bool:
        return float(value)
    return _NOT_FINITE.get(value, MISSING) if type(value) is str else MISSING


def position(value: Any) -> float | None:
    """Return a step, or a time, as a double; None for what is neither."""
    if type(value) not in (int, float) or not abs(value) < _MOST:
        return None
    return float(value)


def is_number(value: Any) -> bool:
    """Return whether a field holds a number, or the name of one that JSON does not have."""
    return type(value) in (int, float, bool) or (type(value) is str and value in _NOT_FINITE)


def missing(length: int) -> array.array[float]:
    """Return a column without a value."""
    return array.array("d", [MISSING]) * length
