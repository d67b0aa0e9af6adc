"""Bytes from mapped safetensors to a device: from disk and from memory, pageable and pinned.

The file is also the program: `python -m benchmarks.gpus.staging FOLDER cuda|cpu SLICE_BYTES`.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpus.files import folder_of, write_files
from benchmarks.gpus.program import figures_of, tell
from benchmarks.gpus.run import Figures, Place

_SLICE_BYTES = {"cuda": 4 * 1024**3, "cpu": 1024**2}
_BUFFER_SHARE = 16  # of the slice; two buffers of 256 MiB on a GPU
_NUM_TURNS = 3
_GB = 1e9


def staging(place: Place, timeout_s: float) -> Iterator[Figures]:
    """Write the files if need be, then measure each way of reading them. Raises SkippedError."""
    begun = time.monotonic()
    yield from write_files(place, timeout_s)
    arguments = [str(folder_of(place)), place.device, str(_SLICE_BYTES[place.device])]
    left_s = timeout_s - (time.monotonic() - begun)
    yield from figures_of(__name__, arguments, place, left_s)


def main(folder: Path, device: str, slice_bytes: int) -> None:
    """Measure, and print what is known after each way."""
    import torch

    files = sorted(folder.glob("*.safetensors"))
    torch.zeros(1, device=device)  # a context is created here, not while time is measured
    _let_go(files)
    tell(disk_to_device_s_per_gb=_load(files[:2], device))
    tell(memory_to_device_s_per_gb=_load(files[:2], device))
    content = _mapped(files, slice_bytes)
    target = torch.empty(content.numel(), dtype=torch.uint8, device=device)
    ways: dict[str, Callable[[], None]] = {
        "pageable": lambda: _pageable(content, target),
        "pinned": _pinned(content, target, device),
        "pinned_already": _pinned_already(content, target, device),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for way in (*ways, *list(ways) * _NUM_TURNS):  # the first of each warms up
        seconds[way].append(_timed(ways[way], device))
    assert bool((target.cpu() == content).all()), "the bytes on the device are others"
    gigabytes = content.numel() / _GB
    tell(slice_bytes=content.numel())
    tell(**{f"{way}_gb_per_s": gigabytes / statistics.median(s[1:]) for way, s in seconds.items()})


def _let_go(files: list[Path]) -> None:
    """Have the kernel forget the pages of `files`, so that they are read from the disk again."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)  # pages that are not on the disk yet stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _load(files: list[Path], device: str) -> float:
    """Return the seconds for a gigabyte, tensor by tensor, as transformers loads them."""
    from safetensors import safe_open

    num_bytes = sum(file.stat().st_size for file in files)

    def load() -> None:
        for file in files:
            with safe_open(file, "pt", device=device) as opened:
                for name in opened.keys():  # noqa: SIM118 - it is no dictionary
                    opened.get_tensor(name).clone()

    return _timed(load, device) / (num_bytes / _GB)


def _mapped(files: list[Path], num_bytes: int) -> Any:
    """Return up to so many bytes of the largest file, mapped, and read from the disk already."""
    import torch

    file = max(files, key=lambda one: one.stat().st_size)
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE)
    content = torch.frombuffer(mapped, dtype=torch.uint8)[:num_bytes]
    content.sum()
    return content


def _pageable(content: Any, target: Any) -> None:
    target.copy_(content)


def _pinned(content: Any, target: Any, device: str) -> Callable[[], None]:
    """Return a copy through two pinned buffers: one is filled while the other is sent."""
    import torch

    is_gpu = device == "cuda"
    size = max(1, content.numel() // _BUFFER_SHARE)
    buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=is_gpu) for _ in range(2)]
    event_of: Any = torch.cuda.Event  # it has no types
    sent = [event_of() if is_gpu else None for _ in range(2)]

    def copy() -> None:
        pieces = zip(content.split(size), target.split(size), strict=True)
        for i, (source, part) in enumerate(pieces):
            buffer, event = buffers[i % 2][: source.numel()], sent[i % 2]
            if event is not None:
                event.synchronize()
            buffer.copy_(source)
            part.copy_(buffer, non_blocking=True)
            if event is not None:
                event.record()

    return copy


def _pinned_already(content: Any, target: Any, device: str) -> Callable[[], None]:
    """Return a copy from pinned memory alone, which is the most that the bus gives."""
    held = content.pin_memory() if device == "cuda" else content.clone()
    return lambda: target.copy_(held, non_blocking=True)


def _timed(act: Callable[[], None], device: str) -> float:
    import torch

    begun = time.monotonic()
    act()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic() - begun


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
