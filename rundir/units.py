"""Bytes, seconds and losses in human-readable form."""

from __future__ import annotations

MIB = 1024 * 1024
GIB = 1024 * MIB


def size_text(num_bytes: float) -> str:
    """Return a size in human-readable form: 61.0 GiB, 12.5 MiB."""
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB else f"{num_bytes / MIB:,.1f} MiB"


def clock_text(seconds: float) -> str:
    """Return seconds as m:ss, or h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def num_text(number: int, what: str) -> str:
    """Return how many there are: 1 row, 1,200 rows."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def loss_text(loss: float | str) -> str:
    """Return a loss with four digits; one that is no number is a text in events: nan, inf."""
    return loss if isinstance(loss, str) else f"{loss:.4f}"
