"""The first parts of an incident to read: verdict.md and the environment."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from doctor.logs.verdict import Verdict
from rundir.errors import ExitCode
from rundir.events import COMMON, Event, parse_line
from rundir.files.reading import GrowingFile
from rundir.masking import Mask
from rundir.paths import RunDir
from rundir.pulse import read_pulse
from rundir.units import MIB, clock_text
from rundir.versions import version_of
from state.run_state import RunState

_NUM_LOG_LINES, _NUM_STACK_LINES = 40, 60
_TAIL_BYTES = 32 << 10
_EVENTS_BYTES = 2 << 20  # of the launcher's events: some two hours
_NUM_MEMORY_ROWS = 12
_TOLD = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def verdict_text(run: RunDir, state: RunState, verdict: Verdict | None, folder: Path) -> str:
    """Return the whole story of a failed run, as Markdown."""
    events = list(_end_of_events(run))
    code = ExitCode(state.status.exit_code or ExitCode.RANK_FAILED)
    sections = {
        f"{run.run_id}: {code.meaning}": _verdict(state, verdict),
        "What ran": [*_fenced(_read(run.command)), *_versions()],
        "Attempts": _attempts(state, events),
        "Ranks": _ranks(run, state),
        "Host memory": _memory(state, events),
        "GPUs": _gpus(state),
        "Stacks": _texts(sorted(folder.glob("stacks/rank*.txt")), _NUM_STACK_LINES),
        "Ends of the logs": _texts(
            [*rank_logs(run, state.status.attempt), run.zygote_log, run.agent_log],
            -_NUM_LOG_LINES,
        ),
    }
    lines = []
    for level, (title, text) in enumerate(sections.items()):
        if text:
            lines += [f"{'##' if level else '#'} {title}", "", *text, ""]
    return "\n".join(lines)


def environment_text(environ: Mapping[str, str], mask: Mask) -> str:
    """Return the launcher's variables that change what a run does, NAME=VALUE, secrets masked."""
    lines = [
        f"{name}={mask.variable(name, value)}"
        for name, value in sorted(environ.items())
        if name.startswith(tuple(_TOLD["variables"]))
    ]
    return "\n".join(lines) + "\n"


def _verdict(state: RunState, verdict: Verdict | None) -> list[str]:
    root = state.root_failure()
    head = [] if root is None else [f"**{root.summary}**", ""]
    if verdict is None:
        return head
    return [*head, "The doctor:", "", *_fenced("\n".join(verdict.lines()))]


def _versions() -> list[str]:
    versions = {"python": sys.version.split()[0], "system": platform.platform()}
    versions["cores"] = str(os.cpu_count())
    versions |= {name: version for name in _TOLD["packages"] if (version := version_of(name))}
    driver = _read(Path("/proc/driver/nvidia/version")).partition("\n")[0]
    if driver:
        versions["driver"] = driver
    return ["", *_table(["what", "version"], [[name, value] for name, value in versions.items()])]


def _attempts(state: RunState, events: Sequence[Event]) -> list[str]:
    """Return a table of what happened when, since the run began."""
    rows = [["0:00", "0", "the run begins"]]
    for event in events:
        after = clock_text(max(0.0, event["t"] - state.status.started_t))
        if event["name"] == "restart":
            what = f"restart {event['num_restarts']} of {event['of']}, after: {event['cause']}"
            rows.append([after, str(event["attempt"]), what])
        elif event["kind"] == "error" and event["name"] != "hang":  # listed as a failure, below
            fields = {key: value for key, value in event.items() if key not in COMMON}
            rows.append([after, str(event["attempt"]), f"{event['name']}: {json.dumps(fields)}"])
    for failure in sorted(state.failures, key=lambda failure: failure.t):
        after = clock_text(max(0.0, failure.t - state.status.started_t))
        rows.append([after, str(state.status.attempt), failure.summary])
    return _table(["after", "attempt", "what"], rows)


def _ranks(run: RunDir, state: RunState) -> list[str]:
    now = time.time()
    rows = []
    for row in state.status.ranks:
        pulse = read_pulse(run.pulse(row.rank))
        if pulse is not None and pulse.attempt != state.status.attempt:
            pulse = None
        since_s = None if row.last_event_t is None else max(0.0, now - row.last_event_t)
        rows.append(
            [
                row.rank,
                row.pid or "",
                row.phase,
                pulse.step if pulse else "",
                pulse.phase if pulse else "",
                "" if since_s is None else f"{clock_text(since_s)} ago",
                "" if row.rss_bytes is None else f"{row.rss_bytes // MIB:,}",
            ]
        )
    return _table(
        ["rank", "pid", "phase", "steps", "last did", "last event", "RSS at start, MiB"], rows
    )


def _memory(state: RunState, events: Sequence[Event]) -> list[str]:
    host = [event for event in events if event["name"] == "host"]
    stride = max(1, len(host) // _NUM_MEMORY_ROWS)
    rows = [
        [
            clock_text(max(0.0, event["t"] - state.status.started_t)),
            event["num_processes"],
            f"{event['pss_bytes'] // MIB:,}",
            f"{event['pss_anon_bytes'] // MIB:,}",
            f"{event['available_bytes'] // MIB:,}",
        ]
        for event in host[::-stride][::-1]
    ]
    head = ["after", "processes", "PSS, MiB", "anonymous, MiB", "available on the host, MiB"]
    peak = f"Peak of the run: {state.peak_pss_bytes // MIB:,} MiB."
    return [*_table(head, rows), "", peak] if rows else []


def _gpus(state: RunState) -> list[str]:
    """Return a table of the last sample of each GPU, with its peak over the run."""
    head = ["GPU", "used, MiB", "peak, MiB", "has, MiB", "busy, %", "°C", "W", "slowed by"]
    rows = [
        [
            index,
            f"{gpu.last['used_bytes'] // MIB:,}",
            f"{gpu.peak_used_bytes // MIB:,}",
            f"{gpu.last['total_bytes'] // MIB:,}",
            *("" if gpu.last[key] is None else gpu.last[key] for key in _GPU_FIGURES),
            ", ".join(gpu.last["slowed_by"] or ()),
        ]
        for index, gpu in sorted(state.gpus.items())
    ]
    return _table(head, rows) if rows else []


_GPU_FIGURES = ("utilization_percent", "temperature_c", "power_w")


def _end_of_events(run: RunDir) -> Iterator[Event]:
    for line in _read(run.event_file("launch"), _EVENTS_BYTES).splitlines():
        if event := parse_line(line.encode()):
            yield event


def rank_logs(run: RunDir, attempt: int) -> list[Path]:
    """Return the logs of the ranks of an attempt."""
    return sorted(run.rank_log(0, attempt).parent.glob("rank*.log"))


def _texts(paths: Iterable[Path], num_lines: int) -> list[str]:
    """Return the first `num_lines` of each file (the last, if negative), each in a block."""
    parts = []
    for path in paths:
        lines = _read(path).splitlines()
        kept = lines[:num_lines] if num_lines > 0 else lines[num_lines:]
        if kept:
            parts += [f"`{path.name}`", "", *_fenced("\n".join(kept)), ""]
    return parts


def _read(path: Path, most_bytes: int = _TAIL_BYTES) -> str:
    """Return the end of a file, or an empty text if it cannot be read."""
    data = GrowingFile(path, from_end_bytes=most_bytes).new_bytes(most_bytes)
    return data.decode(errors="replace")


def _fenced(text: str) -> list[str]:
    return ["````", text.rstrip("\n"), "````"] if text else []


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]
