"""Evidence about a hung run, collected while its ranks are still there to be examined."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from launch.process.activity import state_of
from launch.process.stacks import ask
from launch.run_state.hang import Hang
from rundir import control
from rundir.atomic import write_text
from rundir.paths import RunDir
from rundir.pulse import read_pulse

_FLIGHT_PATIENCE_S = 3.0
_POLL_S = 0.1


def collect(run: RunDir, attempt: int, pids: Mapping[int, int], hang: Hang) -> Path:
    """Examine the processes `pids` (by rank) of a hung attempt; return the folder of the incident.

    The folder gets, for each rank, `stacks/rankN.txt`, the stacks of its threads, and
    `flight/rankN.json`, its last collectives; and `hang.json`, with what the kernel and the pulse
    of each rank say. Anything that cannot be obtained or written is left out. Takes five seconds at
    most.
    """
    folder = run.incident(attempt)
    now = time.monotonic()
    ranks = {rank: _rank(run, rank, pid, now) for rank, pid in pids.items()}
    _ask_for_flight_records(run, pids)
    files = {rank: run.stacks(f"rank{rank}") for rank in pids}
    begins = ask(files, pids)
    _wait_for_flight_records(run, [rank for rank, one in ranks.items() if one["can_answer"]])
    for rank, pid in pids.items():
        letter, _ = state_of(pid)
        ranks[rank]["stays"] = letter == ranks[rank]["state"]
    with contextlib.suppress(OSError):
        for rank, begin in begins.items():
            data = files[rank].read_bytes()[begin:]
            _write(folder / "stacks" / f"rank{rank}.txt", data.decode(errors="replace"))
    with contextlib.suppress(OSError):
        for rank in pids:
            with contextlib.suppress(FileNotFoundError):
                text = run.flight_record(rank).read_text(encoding="utf-8")
                _write(folder / "flight" / f"rank{rank}.json", text)
    with contextlib.suppress(OSError):
        about = {"still_s": hang.still_s, "limit_s": hang.limit_s, "ranks": list(ranks.values())}
        _write(folder / "hang.json", json.dumps(about, indent=1) + "\n")
    return folder


def _rank(run: RunDir, rank: int, pid: int, now: float) -> dict[str, Any]:
    letter, waits_in = state_of(pid)
    pulse = read_pulse(run.pulse(rank))
    alive_s = None if pulse is None else round(now - pulse.alive_mono, 1)
    return {
        "rank": rank,
        "pid": pid,
        "state": letter,
        "waits_in": waits_in,
        "step": None if pulse is None else pulse.step,
        "phase": None if pulse is None else pulse.phase,
        "count": None if pulse is None else pulse.count,
        "alive_s": alive_s,  # seconds since Python code last ran in it
        "can_answer": letter in ("R", "S") and alive_s is not None and alive_s < _FLIGHT_PATIENCE_S,
    }


def _ask_for_flight_records(run: RunDir, ranks: Iterable[int]) -> None:
    with contextlib.suppress(OSError):
        for rank in ranks:
            run.flight_record(rank).unlink(missing_ok=True)
        control.ask(run, "trace")


def _wait_for_flight_records(run: RunDir, ranks: list[int]) -> None:
    deadline = time.monotonic() + _FLIGHT_PATIENCE_S
    while time.monotonic() < deadline:
        if all(run.flight_record(rank).exists() for rank in ranks):
            break
        time.sleep(_POLL_S)
    with contextlib.suppress(OSError):
        (run.control / "trace").unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, durable=False)
