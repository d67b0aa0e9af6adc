"""The incident of a failed run: what one needs to see why, in a folder and in one archive."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from doctor.logs.verdict import Verdict
from launch.run.supervise.incident_text import environment_text, rank_logs, verdict_text
from rundir.atomic import write_text
from rundir.masking import Mask, mask_of
from rundir.paths import RunDir, shown
from state.run_state import RunState

_MOST_BYTES = 2 << 20  # of all files together, before they are packed
_LEAST_BYTES = 16 << 10  # of each file


def incident_lines(run: RunDir, state: RunState, verdict: Verdict | None) -> list[str]:
    """Write the incident of a failed run; return a line that says where it is, or why not."""
    try:
        return [f"attach to a bug report: {shown(write_incident(run, state, verdict))}"]
    except OSError as error:
        return [f"no file for a bug report could be written: {error.strerror or error}"]
    except Exception as error:  # noqa: BLE001 - the run's own failure matters more
        return [f"no file for a bug report could be made: {type(error).__name__}: {error}"]


def write_incident(run: RunDir, state: RunState, verdict: Verdict | None) -> Path:
    """Write `incidents/incident-attemptN/` and pack it; return the archive.

    It holds no more than the ends of logs and events, 2 MiB in all, and no secrets that can be told
    from other text. Raises OSError (a full disk); then there is no archive.
    """
    folder = run.incident(state.status.attempt)
    folder.mkdir(parents=True, exist_ok=True)
    mask = mask_of(run)
    _mask_what_is_there(run.incidents, mask)
    sources = dict(_sources(run, state.status.attempt))
    each = max(_LEAST_BYTES, _MOST_BYTES // max(1, len(sources)))
    for name, source in sources.items():
        if (text := _end_of(source, each)) is not None:
            _write(folder / name, mask.text(text))
    _write(folder / "environment.txt", environment_text(os.environ, mask))
    _write(folder / "verdict.md", mask.text(verdict_text(run, state, verdict, folder)))
    return _packed(run, folder)


def _sources(run: RunDir, attempt: int) -> Iterator[tuple[str, Path]]:
    """Yield the files to copy from the run folder, each with its name in the incident."""
    for path in (run.config, run.command, run.environment, run.plan, run.status):
        yield path.name, path
    folders = {
        "logs": [*rank_logs(run, attempt), *sorted(run.agent_log.parent.glob("*.log"))],
        "events": sorted(run.events.glob("*.jsonl")),
        "flight": sorted(run.incidents.glob("*_rank_*.json")),
    }
    for folder, paths in folders.items():
        yield from ((f"{folder}/{path.name}", path) for path in paths)


def _end_of(path: Path, most_bytes: int) -> str | None:
    """Return the last whole lines of a file; None if it cannot be read, or is empty."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            data = file.read(most_bytes)
    except OSError:
        return None
    if size > len(data):
        cut = data.find(b"\n") + 1
        left_out = f"({size - len(data) + cut:,} bytes before this are left out)\n"
        return left_out + data[cut:].decode(errors="replace")
    return data.decode(errors="replace") or None


def _mask_what_is_there(incidents: Path, mask: Mask) -> None:
    """Mask what was collected while the run hung: stacks, flight records."""
    for path in [*incidents.glob("*/hang.json"), *incidents.glob("*/*/rank*.*")]:
        with contextlib.suppress(UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            if (masked := mask.text(text)) != text:
                _write(path, masked)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    write_text(path, text, durable=False)


def _packed(run: RunDir, folder: Path) -> Path:
    """Pack the folder and what earlier attempts have left; the archive is complete or absent."""
    temporary = run.incident_archive.with_suffix(".part")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in _files([folder, *sorted(run.incidents.glob("incident-attempt*"))]):
                archive.write(path, Path(run.run_id) / path.relative_to(run.incidents))
        temporary.replace(run.incident_archive)
    finally:
        temporary.unlink(missing_ok=True)
    return run.incident_archive


def _files(folders: Iterable[Path]) -> list[Path]:
    files = (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file())
    return list(dict.fromkeys(files))
