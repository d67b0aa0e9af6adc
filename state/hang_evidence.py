"""Evidence about a hung run, collected while its ranks are still there to be examined."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from machine.processes import stalled
from machine.processes.activity import letter_of, state_of
from machine.processes.stacks import ask
from rundir import control
from rundir.atomic import write_text
from rundir.events import Event, EventTail
from rundir.paths import RunDir
from rundir.pulse import PulseState, read_pulse
from state.hang import Hang

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
    ranks = {rank: _rank(run, attempt, rank, pid, now) for rank, pid in pids.items()}
    _ask_for_flight_records(run, pids)
    files = {rank: run.stacks(f"rank{rank}") for rank in pids}
    begins = ask(files, pids)
    children = {rank: [child["pid"] for child in ranks[rank]["children"]] for rank in pids}
    stalled.write_stacks(files, children, folder / "stacks")
    _wait_for_flight_records(run, [rank for rank, row in ranks.items() if row["can_answer"]])
    for rank, pid in pids.items():
        letter = letter_of(pid)
        ranks[rank]["stays"] = letter == ranks[rank]["state"]
        stalled.look_again(ranks[rank], pid)
        for child in ranks[rank]["children"]:
            stalled.look_again(child, child["pid"])
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


def _rank(run: RunDir, attempt: int, rank: int, pid: int, now: float) -> dict[str, Any]:
    letter, waits_in = state_of(pid)
    pulse = read_pulse(run.pulse(rank))
    alive_s = None if pulse is None else round(pulse.deaf_s(now), 1)
    watched = {} if pulse is None else _watched(pulse, now)
    store = _store(run, attempt, rank)
    return stalled.look(pid) | {
        "rank": rank,
        "pid": pid,
        "children": stalled.children_of(pid),
        "state": letter,
        "waits_in": waits_in,
        "step": None if pulse is None else pulse.step,
        "phase": None if pulse is None else pulse.phase,
        "count": None if pulse is None else pulse.count,
        "alive_s": alive_s,  # seconds since Python code last ran in it
        "can_answer": letter in ("R", "S") and alive_s is not None and alive_s < _FLIGHT_PATIENCE_S,
        **({"store": store} if store else {}),
        **watched,
    }


def _store(run: RunDir, attempt: int, rank: int) -> str:
    """Return where a rank in init_process_group awaits the others, and how many; "" if it is not.

    Its /proc/PID/environ does not tell: a fork has that of the zygote, and a script may set its
    own.
    """
    inits: list[Event] = []
    with contextlib.suppress(OSError):
        events = EventTail(run.event_file(f"rank{rank}")).new_events()
        inits = [
            event for event in events if (event["name"], event["attempt"]) == ("pg.init", attempt)
        ]
    if not inits or inits[-1]["kind"] != "start":
        return ""
    address, size = inits[-1].get("address"), inits[-1].get("world_size")
    return f"{address} (world size {size})" if address else ""


def _watched(pulse: PulseState, now: float) -> dict[str, Any]:
    """Return what the watchdog of a rank has seen, with seconds until `now` for points in time."""
    main, left = pulse.main, pulse.left
    return {
        "at": {"file": main.file, "line": main.line, "function": main.function},
        "still_s": _since(main.still_mono, now),  # its main thread's stack has not changed
        "waits_s": _since(main.waits_mono, now),  # null: it does not wait, as far as can be seen
        "calls": main.waits_in,  # what it waits in, as "all_reduce"; "" while `waits_s` is null
        "groups": pulse.groups,
        "pending_s": _since(pulse.pending_mono, now),
        "left": left
        and {"how": left.how, "file": left.file, "line": left.line, "code": left.code}
        | {"s": _since(left.mono, now)},
    }


def _since(mono: float | None, now: float) -> float | None:
    return None if mono is None else round(max(0.0, now - mono), 1)


def _ask_for_flight_records(run: RunDir, ranks: Iterable[int]) -> None:
    with contextlib.suppress(OSError):
        for rank in ranks:
            run.flight_record(rank).unlink(missing_ok=True)
        control.ask(run, "trace")


def _wait_for_flight_records(run: RunDir, ranks: list[int]) -> None:
    deadline = time.monotonic() + _FLIGHT_PATIENCE_S
    while time.monotonic() < deadline:
        if all(_is_complete(run.flight_record(rank)) for rank in ranks):
            break
        time.sleep(_POLL_S)
    with contextlib.suppress(OSError):
        (run.control / "trace").unlink(missing_ok=True)


def _is_complete(record: Path) -> bool:
    """Return whether a rank has written its record with stacks, which it does last."""
    try:
        text = record.read_text(encoding="utf-8")
    except OSError:
        return False
    return '"frames": [[' in text or text == "[]"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text, durable=False)
