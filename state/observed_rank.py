"""One rank as seen from outside, by its pulse and the kernel, and what is said about its waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from machine.processes.activity import all_io_bytes, busy_s
from machine.processes.stalled import written_file
from rundir.paths import shown
from rundir.pulse import PulseState
from rundir.units import clock_text

_IDLE_SHARE, _IDLE_FROM_S = 0.005, 60.0  # of a core: what threads that only wait take in total
_IDLE_IO_BYTES = 16 << 10
_IDLE_DISK_BYTES = 64 << 10  # in one look: pages of logs and of the pulse
_DEAF_S = 5.0  # in which a rank that can run Python code shows it
_IDLE_TOLD_S = 3.0
_MOST_NAMED = 4
STOPPED = ("T", "t")  # the kernel's letters


@dataclass(slots=True)
class ObservedRank:
    """One rank as last seen. Accumulated seconds count only time in which it was looked at."""

    rank: int
    pid: int
    pulse: PulseState
    letter: str = ""  # the kernel's, for the state of the process; "" if it is gone
    deaf_s: float = 0.0  # since Python code has last run in it
    waited_s: float = 0.0
    idle_s: float = 0.0  # neither its stack nor its processor time nor its files have moved
    stays_s: float = 0.0  # it has been in the same function of the user's
    _waits_mono: float | None = None
    _place: object = None
    _idle_key: object = None
    _busy_s: float = 0.0
    _io_bytes: int = 0
    _disk_bytes: int = 0

    @property
    def is_stopped(self) -> bool:
        """True if a signal or a debugger has stopped it."""
        return self.letter in STOPPED

    @property
    def is_gone(self) -> bool:
        """True if its script has ended, or the process."""
        return self.pulse.left is not None or self.letter in ("", "Z", "X")

    @property
    def waits(self) -> bool:
        """True if it waits for other ranks, as it has shown a moment ago."""
        is_there = not (self.is_gone or self.is_stopped or self.deaf_s > _DEAF_S)
        return is_there and self.pulse.main.waits_mono is not None

    def time_wait(self, ran_s: float) -> None:
        """Measure how long it has been in one and the same wait, `ran_s` after the last look.

        A rank that shows nothing for a moment, on a machine that is busy, may still be in it.
        """
        before, self._waits_mono = self._waits_mono, self.pulse.main.waits_mono
        is_same = self._waits_mono is not None and before in (None, self._waits_mono)
        if not is_same or self.is_gone or self.is_stopped:
            self.waited_s = 0.0
        elif self.waits:
            self.waited_s += ran_s

    def look_for_movement(self, ran_s: float, *, has_answered: bool = False) -> None:
        """Measure whether it has moved in the `ran_s` seconds since the last look.

        `has_answered`: it was asked meanwhile where it is, and an answer is no movement.
        """
        if self.is_gone or self.is_stopped:
            return
        place = self.pulse.main.file, self.pulse.main.function
        self.stays_s = self.stays_s + ran_s if place == self._place else 0.0
        self._place = place
        key = self.pulse.main.still_mono, tuple(sorted(self.pulse.groups.items()))
        busy_now_s, (io_now, disk_now) = busy_s([self.pid]), all_io_bytes([self.pid])
        allowed_s = _IDLE_SHARE * max(self.idle_s, _IDLE_FROM_S)
        is_idle = (
            key == self._idle_key
            and 0 <= busy_now_s - self._busy_s < allowed_s
            and 0 <= io_now - self._io_bytes < _IDLE_IO_BYTES
            and 0 <= disk_now - self._disk_bytes < _IDLE_DISK_BYTES
        )
        self._disk_bytes = disk_now
        is_answer = has_answered and key == self._idle_key
        self.idle_s = self.idle_s + ran_s if is_idle or is_answer else 0.0
        if is_answer or not is_idle:
            self._idle_key, self._busy_s, self._io_bytes = key, busy_now_s, io_now


def does(rank: ObservedRank) -> str:
    """Return what a rank does, as "computes at x.py:10"."""
    main, left = rank.pulse.main, rank.pulse.left
    place = f"{shown(Path(main.file))}:{main.line}" if main.file else "a place that is unknown"
    if left is not None:
        verb = "failed" if left.how == "raised" else "finished"
        text = f"has {verb} and left at {shown(Path(left.file))}:{left.line}"
    elif rank.is_gone:
        text = "is gone: its process has ended"
    elif rank.is_stopped:
        text = f"is stopped (kill -CONT {rank.pid}) at {place}"
    elif rank.deaf_s > _DEAF_S:
        text = f"has run no Python code for {clock_text(rank.deaf_s)}, last at {place}"
    elif rank.waits:
        text = f"waits in {main.waits_in} at {place}"
    elif written := written_file(rank.pid):
        file, since = shown(Path(written)), clock_text(rank.idle_s)
        is_long = rank.idle_s >= _IDLE_TOLD_S
        what = f"has been writing {file} for {since}" if is_long else f"writes {file}"
        text = f"{what} at {place}"
    elif rank.idle_s >= _IDLE_TOLD_S:
        text = f"has been idle for {clock_text(rank.idle_s)} at {place}"
    else:
        text = f"computes at {place}"
    return text


def waits_text(ranks: Sequence[ObservedRank]) -> str:
    """Return a line that says who has waited, how long and for whom."""
    waiting = [rank for rank in ranks if rank.waits]
    since = clock_text(max(rank.waited_s for rank in waiting))
    peers = sorted((rank for rank in ranks if not rank.waits), key=_suspicion)
    if not peers:
        places = ", ".join(f"rank {rank.rank} {does(rank)}" for rank in waiting[:_MOST_NAMED])
        num_more = len(waiting) - _MOST_NAMED
        more = f" and {num_more} more" if num_more > 0 else ""
        return f"all ranks have waited {since} for each other: {places}{more}"
    have = "has" if len(waiting) == 1 else "have"
    peer = peers[0]
    return f"{_names(waiting)} {have} waited {since} for rank {peer.rank}, which {does(peer)}"


def _suspicion(rank: ObservedRank) -> tuple[bool, bool, float]:
    """Return a key that sorts ranks the others wait for; the likeliest cause comes first."""
    return not rank.is_stopped, not rank.is_gone, -rank.idle_s


def _names(ranks: Sequence[ObservedRank]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0].rank}"
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} ranks"
    numbers = [str(rank.rank) for rank in ranks]
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
