"""`python -m launch.files.page_cache FILE…`: read files into memory before they are needed.

What is mapped from a network filesystem comes a page fault at a time, each of which waits for the
server. Some large reads at once take a fraction of that time, while data are tokenised and the
ranks' libraries imported. They stop where memory has become too short for all of the files.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from machine.memory.host_memory import HostMemory
from machine.processes import children

_CHUNK_BYTES = 8 << 20
_AT_ONCE = 4
_LOOK_EVERY = 64  # chunks


def begin(files: Sequence[str], env: dict[str, str]) -> None:
    """Start reading in a child, which ends by itself, or with this process."""
    if files:
        child = children.start("launch.files.page_cache", *files, env=env)
        threading.Thread(target=child.wait, daemon=True).start()


def main(files: Sequence[str]) -> None:
    """Read the files, in order; what cannot be read is left to whoever needs it."""
    total_bytes = sum(Path(file).stat().st_size for file in files)
    buffers = threading.local()

    def read(numbered: tuple[int, tuple[int, int]]) -> None:
        number, (descriptor, offset) = numbered
        if number % _LOOK_EVERY == 0 and HostMemory().now().available_bytes < total_bytes:
            os._exit(0)  # it would push out what was read first
        if not hasattr(buffers, "chunk"):
            buffers.chunk = bytearray(_CHUNK_BYTES)
        with contextlib.suppress(OSError):
            os.preadv(descriptor, [buffers.chunk], offset)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(read, enumerate(_chunks(files))))


def _chunks(files: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the descriptor and the offset of each chunk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)  # until the end of this process
        for offset in range(0, os.fstat(descriptor).st_size, _CHUNK_BYTES):
            yield descriptor, offset


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # a file that has gone: whoever needs it will say so
        main(sys.argv[1:])
