"""Taking what was dropped: it becomes a job by renames alone, so it is always in one place.

A job is made in `queue/.JOB`, what was dropped is moved into it, and then the folder gets its name.
Whatever ends the process in between, `recover` finishes or undoes it. By its hash the same content
is known, whatever it is called.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from inbox.arrivals import Arrival
from inbox.jobs import InboxJob, new_job, read_job
from inbox.layout import Layout, entries
from inbox.models.held_out_scores import StoppedError
from rundir.atomic import new_folder, remove_abandoned, sync

_CHUNK_BYTES = 1024 * 1024
_TAKEN = ".taken"  # where a dropped file stays if it lies on another file system than the queue


def claim(layout: Layout, arrival: Arrival) -> InboxJob:
    """Make a job of what was dropped. Raises OSError, and then it lies where it lay."""
    job = new_job(layout, arrival.path.name, arrival.priority)
    job.folder = layout.queue / f".{job.id}"
    try:
        (job.folder / "data").mkdir(parents=True)
        job.write()
        _move(arrival.path, job)
    except BaseException:
        _undo(job.folder)
        raise
    return _name(job, layout)


def _move(path: Path, job: InboxJob) -> None:
    """Move what was dropped into the job's folder, where no other has its name."""
    try:
        path.rename(job.data)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        taken = path.parent / _TAKEN / job.id / path.name
        taken.parent.mkdir(parents=True)
        try:
            path.rename(taken)
        except BaseException:
            taken.parent.rmdir()
            raise
        sync(taken.parent)
        job.data.symlink_to(taken.absolute())  # nothing is copied, and nothing is removed
    sync(path.parent)


def _take_marker(job: InboxJob, layout: Layout) -> None:
    """Have the marker go along: the next of that name is not complete because this one was."""
    drop = layout.drops()[job.priority]
    arrival = Arrival(path=drop / job.name, priority=job.priority)
    if not arrival.is_marked:
        return
    try:
        arrival.marker.rename(job.folder / "ready")
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        arrival.marker.rename(drop / _TAKEN / job.id / arrival.marker.name)


def _name(job: InboxJob, layout: Layout) -> InboxJob:
    """Give the job's folder its name, by which it is in the queue."""
    _take_marker(job, layout)
    sync(job.folder / "data")
    named = layout.queue / job.id
    job.folder.rename(named)
    job.folder = named
    sync(layout.queue)
    return job


def recover(layout: Layout) -> list[InboxJob]:
    """Finish what a killed process had begun to claim; return those jobs. Raises OSError."""
    remove_abandoned(layout.queue)
    recovered = []
    for entry in entries(layout.queue):
        if not entry.name.startswith(".") or "@" in entry.name:
            continue
        folder = Path(entry.path)
        job = read_job(folder, entry.name[1:])
        if job is not None and (os.path.lexists(job.data) or _is_linked(layout, job)):
            recovered.append(_name(job, layout))
        else:
            _undo(folder)
    return recovered


def _is_linked(layout: Layout, job: InboxJob) -> bool:
    """Return whether its data was moved aside on another file system, and link to it."""
    for drop in layout.drops().values():
        taken = drop / _TAKEN / job.id / job.name
        if os.path.lexists(taken):
            job.data.symlink_to(taken.absolute())
            return True
    return False


def _undo(folder: Path) -> None:
    """Remove a job that nothing was moved into; anything in data/ keeps it."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            (folder / "data").rmdir()
        for left in folder.iterdir():  # job.json, or the beginning of one
            left.unlink()
        folder.rmdir()


def add(layout: Layout, path: Path, priority: str) -> InboxJob:
    """Make a job of a copy of `path`, which stays where it is. Raises OSError."""
    job = new_job(layout, path.name, priority)
    with new_folder(layout.queue / job.id) as folder:
        job.folder = folder
        (folder / "data").mkdir()
        if path.is_dir():
            shutil.copytree(path, job.data)
        else:
            shutil.copyfile(path, job.data)
        job.write()
    job.folder = layout.queue / job.id
    return job


def content_hash(path: Path, is_stopped: Callable[[], bool]) -> str:
    """Return the SHA-256 of a file, or of a folder's file names and their contents.

    Reads in pieces, so that a file, or a line of it, may have any size. Raises OSError, or
    StoppedError once `is_stopped()`.
    """
    whole = hashlib.sha256()
    if not path.is_dir():
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                if is_stopped():
                    raise StoppedError
                whole.update(chunk)
        return whole.hexdigest()
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    for below in sorted(files):
        if not below.name.startswith("."):
            whole.update(os.fsencode(below.relative_to(path)) + b"\0")
            whole.update(content_hash(below, is_stopped).encode() + b"\n")
    return whole.hexdigest()
