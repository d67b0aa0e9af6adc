"""A reader of TensorBoard's event files that verifies checksums and drops superseded steps."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

Point = tuple[int, float, float]  # step, wall time in Unix seconds, value


def records(path: Path) -> list[Any]:
    """Return the `Event`s of a file, without a torn last one. Fails on a wrong checksum."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data, position, found = path.read_bytes(), 0, []
    while position + 12 <= len(data):
        head = data[position : position + 8]
        (size,) = struct.unpack("<Q", head)
        start = position + 12
        body = data[start : start + size]
        if len(data) < start + size + 4:
            break
        sums = (
            struct.unpack("<I", data[position + 8 : start]),
            struct.unpack("<I", data[start + size : start + size + 4]),
        )
        assert sums == ((masked_crc32c(head),), (masked_crc32c(body),))
        found.append(Event.FromString(body))
        position = start + size + 4
    return found


def scalars(folder: Path) -> dict[str, list[Point]]:
    """Return tag → the points that TensorBoard shows for it, from the one file in `folder`."""
    (path,) = folder.glob("events.out.tfevents.*")
    written = records(path)
    if not written:  # just made: not even its first record is written yet
        return {}
    first, *rest = written
    assert first.file_version == "brain.Event:2"
    found: dict[str, list[Point]] = {}
    for event in rest:
        if event.HasField("session_log"):
            assert event.session_log.status == event.session_log.START
            for tag, points in found.items():
                found[tag] = [point for point in points if point[0] < event.step]
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(
                (event.step, event.wall_time, value.simple_value)
            )
    return found
