"""The watchdog thread of a rank: shows what its main thread and its process groups do.

It beats the rank's pulse, which shows that Python code can run, and reports recent collectives when
asked. The rank may run the trainer or a script; the thread needs no import once it runs, and never
imports torch.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ranks.flight_compat import dumped_collectives, group_counts
from ranks.main_thread import MainThreadWatch
from rundir import control
from rundir.atomic import write_text
from rundir.paths import RunDir
from rundir.pulse import SCRIPT, Pulse

_BEAT_S = 1.0
_END_S = 10.0  # for a look or an answer under way
_LOOKS = 3  # in a row without a collective completed, before one counts as pending
_NUM_ENTRIES = 64  # collectives in a report
_NUM_FRAMES = 16  # stack frames of each, the innermost first


def start_watchdog(run: RunDir) -> Pulse:
    """Return the pulse of this rank of our trainer; a thread now keeps it alive, see `Watchdog`."""
    rank = int(os.environ.get("RANK", "0"))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    pulse = Pulse(run.pulse(rank), attempt)
    if "RANK" in os.environ:  # a plain run has nobody to wait for
        Watchdog(run, rank, pulse, of_script=False, say=_print).start()
    return pulse


def watch_script(run: RunDir, rank: int, attempt: int, say: Callable[[str], None]) -> Pulse:
    """Return the pulse of this rank of a script, as `start_watchdog`; `say` reports a failure."""
    pulse = Pulse(run.pulse(rank), attempt, SCRIPT)
    Watchdog(run, rank, pulse, of_script=True, say=say).start()
    return pulse


def _print(text: str) -> None:
    print(f"airlock: {text}", flush=True)  # noqa: T201


class Watchdog:
    """The watchdog of the thread that creates it."""

    def __init__(
        self,
        run: RunDir,
        rank: int,
        pulse: Pulse,
        *,
        of_script: bool,
        say: Callable[[str], None],
    ) -> None:
        self._run, self._rank, self._pulse, self._say = run, rank, pulse, say
        self._main = MainThreadWatch(threading.get_ident(), of_script=of_script)
        self._counts: dict[str, tuple[int, int]] = {}
        self._still_mono = time.monotonic()  # since when the counts have not changed
        self._num_same = 0
        self._has_answered = self._has_failed = self._rests = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="airlock-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread; a fork of this process has none."""
        self._thread.start()
        atexit.register(self._stop)

    def _stop(self) -> None:
        """End the thread: one that is in C++ code when Python ends aborts the process."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _beat(self) -> None:
        while not self._end.wait(_BEAT_S):
            try:
                self._pulse.alive()
                # While collectives are completed, every second beat is soon enough.
                self._rests = self._num_same == 1 and not self._rests
                if not self._rests:
                    self._observe(time.monotonic())
                self._answer()
            except Exception as error:  # noqa: BLE001 - must go on: the beat shows a free GIL
                if not self._has_failed:
                    self._has_failed = True
                    self._say(f"the watchdog cannot see this rank: {error!r}")

    def _observe(self, now: float) -> None:
        counts = group_counts()
        self._num_same = self._num_same + 1 if counts == self._counts else 1
        if self._num_same == 1:
            self._counts, self._still_mono = counts, now
        is_behind = any(completed < enqueued for enqueued, completed in counts.values())
        is_pending = is_behind and self._num_same >= _LOOKS
        device = _has_device()
        since = self._still_mono if is_pending else None
        self._pulse.groups(counts, since, has_device=device)
        self._pulse.main_thread(
            self._main.observe(now, done=counts, is_pending=is_pending, has_device=device)
        )

    def _answer(self) -> None:
        is_asked = control.is_asked(self._run, "trace")
        if is_asked and not self._has_answered:
            self._pulse.alive(answers=True)
            try:
                for with_stacks in (False, True):  # at once; then complete, which may take seconds
                    text = json.dumps(flight_record(with_stacks=with_stacks))
                    write_text(self._run.flight_record(self._rank), text, durable=False)
            except Exception as error:  # noqa: BLE001 - an answer that fails is not asked for again
                self._say(f"no flight record: {error!r}")
            self._pulse.alive()
        self._has_answered = is_asked


def _has_device() -> bool:
    """Return whether this process uses a GPU."""
    cuda = sys.modules.get("torch.cuda")
    return bool(cuda is not None and cuda.is_initialized())


def flight_record(*, with_stacks: bool = True) -> list[dict[str, Any]]:
    """Return this rank's last collectives from torch's flight recorder, the oldest first.

    Each has its group, its number in that group, its sizes and the Python code that called it.
    """
    entries = dumped_collectives(with_stacks=with_stacks)
    seen = {
        (entry["process_group"], entry["record_id"], entry["op_id"]): entry for entry in entries
    }
    ordered = sorted(seen.values(), key=lambda record: int(record["time_created_ns"]))
    return [_as_json(record) for record in ordered if not record["is_p2p"]][-_NUM_ENTRIES:]


def _as_json(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "group": ":".join(entry["process_group"]),
        "number": entry["collective_seq_id"],
        "name": entry["profiling_name"].rpartition(":")[2],
        "sizes": entry["input_sizes"],
        "state": entry["state"],
        "frames": [
            [frame["filename"], frame["line"], frame["name"]]
            for frame in entry.get("frames", ())[:_NUM_FRAMES]
        ],
    }
