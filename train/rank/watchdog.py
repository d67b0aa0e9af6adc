"""The watchdog thread of a rank: shows that Python code can run, and reports recent collectives."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from rundir import control
from rundir.atomic import write_text
from rundir.paths import RunDir
from rundir.pulse import Pulse
from train.rank.torch_compat import dumped_collectives

_BEAT_S = 1.0
_NUM_ENTRIES = 64  # collectives in a report
_NUM_FRAMES = 16  # stack frames of each, the innermost first


def start_watchdog(run: RunDir) -> Pulse:
    """Return this rank's pulse; a thread now keeps it alive and answers requests for a trace."""
    rank = int(os.environ.get("RANK", "0"))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    pulse = Pulse(run.pulse(rank), attempt)
    if "RANK" in os.environ:  # a plain run has nobody to wait for
        args = (run, rank, pulse)
        threading.Thread(target=_beat, args=args, name="airlock-watchdog", daemon=True).start()
    return pulse


def _beat(run: RunDir, rank: int, pulse: Pulse) -> None:
    answered = False
    pause = threading.Event()
    while not pause.wait(_BEAT_S):
        pulse.alive()
        is_asked = control.is_asked(run, "trace")
        if is_asked and not answered:
            try:
                write_text(run.flight_record(rank), json.dumps(flight_record()), durable=False)
            except Exception as error:  # noqa: BLE001 - must go on: the beat shows a free GIL
                print(f"airlock: no flight record: {error!r}", flush=True)  # noqa: T201
        answered = is_asked


def flight_record() -> list[dict[str, Any]]:
    """Return this rank's last collectives from torch's flight recorder, the oldest first.

    Each has its group, its number in that group, its sizes and the Python code that called it.
    """
    entries = dumped_collectives()
    seen = {(one["process_group"], one["record_id"], one["op_id"]): one for one in entries}
    ordered = sorted(seen.values(), key=lambda one: int(one["time_created_ns"]))
    return [_told(one) for one in ordered if not one["is_p2p"]][-_NUM_ENTRIES:]


def _told(entry: dict[str, Any]) -> dict[str, Any]:
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
