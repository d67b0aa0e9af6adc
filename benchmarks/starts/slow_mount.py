"""A slow filesystem of our own: `python -m benchmarks.starts.slow_mount FOLDER POINT`.

FOLDER is shown at POINT, read-only, as `fuse.slow`, until this process gets SIGTERM; each request
of the kernel takes `--call-ms` milliseconds more. `--log FILE` notes each read: pid, offset, bytes,
path. It needs root and /dev/fuse, and speaks the kernel's protocol itself: linux/fuse.h, 7.31.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from rundir.paths import ROOT

_NUM_THREADS = 16
_REQUEST_BYTES = 1 << 17
_READ_ONLY, _NO_SUID, _NO_DEV = 1, 2, 4
_DETACH = 2  # umount2's MNT_DETACH
_HEADER, _ANSWER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTRIBUTES, _READ, _ENTRY = struct.Struct("<6Q10I"), struct.Struct("<QQI"), struct.Struct("<QQII")
_VALID_S = 3600
_ASYNC_READ, _PARALLEL_FOLDERS, _MAX_PAGES = 1 << 0, 1 << 18, 1 << 22
_KEEP_CACHE = 2
_LOOKUP, _GETATTR, _READLINK, _OPEN, _READ_FILE, _STATFS, _RELEASE = 1, 3, 5, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 25, 26, 27, 28, 29
_UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET


class _Mirror:
    """The files of a folder, by the numbers that the kernel is given for them."""

    def __init__(self, folder: Path, call_s: float, log: Path | None) -> None:
        self._paths, self._numbers = {1: str(folder)}, {str(folder): 1}
        self._call_s, self._lock = call_s, threading.Lock()
        self._log = log.open("a", buffering=1) if log else None
        self._answers: dict[int, Callable[[int, bytes, int], bytes]] = {
            _LOOKUP: self._lookup,
            _GETATTR: lambda node, *_: struct.pack("<QII", _VALID_S, 0, 0) + self._about(node),
            _READLINK: lambda node, *_: os.fsencode(os.readlink(self._paths[node])),  # noqa: PTH115
            _OPEN: lambda node, *_: struct.pack("<QII", self._opened(node), _KEEP_CACHE, 0),
            _READ_FILE: self._read,
            _RELEASE: self._close,
            _FLUSH: lambda *_: b"",
            _STATFS: lambda *_: bytes(40) + struct.pack("<IIII", 4096, 255, 4096, 0) + bytes(24),
            _INIT: self._begin,
            _OPENDIR: lambda *_: bytes(16),
            _READDIR: self._list,
            _RELEASEDIR: lambda *_: b"",
        }

    def answer(self, request: bytes) -> bytes | None:
        """Return the answer to a request of the kernel; None if it wants none."""
        _, opcode, unique, node, _, _, pid, _, _ = _HEADER.unpack_from(request)
        if opcode in _UNANSWERED:
            return None
        time.sleep(self._call_s)
        code, body = 0, b""
        try:
            body = self._answers[opcode](node, request[_HEADER.size :], pid)
        except KeyError:
            code = -errno.ENOSYS
        except OSError as error:
            code = -(error.errno or errno.EIO)
        return _ANSWER.pack(_ANSWER.size + len(body), code, unique) + body

    def _begin(self, _node: int, body: bytes, _pid: int) -> bytes:
        _, _, read_ahead, flags = struct.unpack_from("<IIII", body)
        flags &= _ASYNC_READ | _PARALLEL_FOLDERS | _MAX_PAGES
        return struct.pack("<IIIIHHIIHHI", 7, 31, read_ahead, flags, 16, 12, 4096, 1, 256, 0, 0) + (
            bytes(28)
        )

    def _lookup(self, node: int, body: bytes, _pid: int) -> bytes:
        path = f"{self._paths[node]}/{os.fsdecode(body[:-1])}"
        os.lstat(path)
        with self._lock:
            number = self._numbers.setdefault(path, len(self._numbers) + 1)
            self._paths[number] = path
        return struct.pack("<QQQQII", number, 0, _VALID_S, _VALID_S, 0, 0) + self._about(number)

    def _about(self, node: int) -> bytes:
        about = os.lstat(self._paths[node])
        times = [int(about.st_atime), int(about.st_mtime), int(about.st_ctime)]
        parts = [about.st_atime_ns % 10**9, about.st_mtime_ns % 10**9, about.st_ctime_ns % 10**9]
        owner = [about.st_mode, about.st_nlink, about.st_uid, about.st_gid]
        sizes = [node, about.st_size, about.st_blocks]
        return _ATTRIBUTES.pack(*sizes, *times, *parts, *owner, 0, 4096, 0)

    def _opened(self, node: int) -> int:
        return os.open(self._paths[node], os.O_RDONLY)

    def _close(self, _node: int, body: bytes, _pid: int) -> bytes:
        os.close(_READ.unpack_from(body)[0])
        return b""

    def _read(self, node: int, body: bytes, pid: int) -> bytes:
        descriptor, offset, size = _READ.unpack_from(body)
        data = os.pread(descriptor, size, offset)
        if self._log:
            self._log.write(f"{pid} {offset} {len(data)} {self._paths[node]}\n")
        return data

    def _list(self, node: int, body: bytes, _pid: int) -> bytes:
        _, offset, size = _READ.unpack_from(body)
        listed = b""
        for place, name in enumerate(sorted(os.listdir(self._paths[node])), 1):  # noqa: PTH208
            if place > offset:
                raw = os.fsencode(name)
                entry = _ENTRY.pack(place, place, len(raw), 0) + raw
                entry += bytes(-len(entry) % 8)
                if len(listed) + len(entry) > size:
                    break
                listed += entry
        return listed


def _serve(device: int, mirror: _Mirror) -> None:
    while True:
        try:
            request = os.read(device, _REQUEST_BYTES)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):  # the caller was interrupted
                continue
            return  # unmounted
        if (answer := mirror.answer(request)) is not None:
            with contextlib.suppress(OSError):
                os.write(device, answer)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("point", type=click.Path(path_type=Path, exists=True))
@click.option("--call-ms", default=2.0)
@click.option("--log", type=click.Path(path_type=Path))
def main(folder: Path, point: Path, call_ms: float, log: Path | None) -> None:
    """Show FOLDER at POINT until SIGTERM."""
    c = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    flags = _READ_ONLY | _NO_SUID | _NO_DEV
    if c.mount(b"slow", os.fsencode(point), b"fuse.slow", flags, options.encode()):
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    mirror = _Mirror(folder.resolve(), call_ms / 1e3, log)
    try:
        for _ in range(_NUM_THREADS):
            threading.Thread(target=_serve, args=(device, mirror), daemon=True).start()
        print("mounted", flush=True)  # noqa: T201 - whoever started it waits for that
        threading.Event().wait()
    finally:
        c.umount2(os.fsencode(point), _DETACH)


class NoMountError(Exception):
    """Such a filesystem cannot be mounted here; the message says why."""


@contextlib.contextmanager
def slow_mount(folder: Path, *options: str) -> Iterator[Path]:
    """Yield a folder that shows `folder` from a slow filesystem. Raises NoMountError."""
    point = Path(tempfile.mkdtemp(prefix="airlock-slow-"))
    words: Sequence[str] = [sys.executable, "-P", "-m", "benchmarks.starts.slow_mount", *options]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [*words, folder, point],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline() != "mounted\n":
            raise NoMountError(server.communicate()[1].strip())
        yield point
    finally:
        server.terminate()
        server.communicate()
        point.rmdir()


if __name__ == "__main__":
    main()
