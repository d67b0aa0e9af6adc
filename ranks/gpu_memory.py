"""What a GPU's memory held when it ran out: torch's snapshot, and the largest allocations.

Torch notes the line of each allocation (train.memory_history): 2 µs each, of which most pass while
the GPU computes. Backward allocates without a line of Python.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ranks.torch_compat import memory_snapshot
from rundir.atomic import write_bytes, write_text
from rundir.paths import RunDir
from rundir.units import MIB

NUM_LARGEST = 10
_NUM_LINES = 3  # of the stack of each: the innermost
_OF_TORCH = ("/torch/", "/site-packages/")

Snapshot = dict[str, Any]  # as torch.cuda.memory._snapshot() describes it


@contextmanager
def report_out_of_memory(
    run: RunDir, say: Callable[[str], None], snapshot: Callable[[], Snapshot] = memory_snapshot
) -> Iterator[None]:
    """If the block ends by a GPU out of memory, write what that held into the incident."""
    try:
        yield
    except torch.OutOfMemoryError:
        try:
            say(_keep(run, snapshot()))
        except Exception as error:  # noqa: BLE001 - the error that is being raised matters more
            say(f"no snapshot of the GPU's memory: {type(error).__name__}: {error}")
        raise


def _keep(run: RunDir, snapshot: Snapshot) -> str:
    """Write the snapshot and its summary; return a line that says where. Raises OSError."""
    rank = os.environ.get("RANK", "0")
    folder = run.incident(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / f"gpu-memory-rank{rank}.txt"
    write_text(text, summary(snapshot) + "\n", durable=False)
    write_bytes(text.with_suffix(".pickle"), pickle.dumps(snapshot), durable=False)
    return (
        f"what the GPU's memory held: {text.relative_to(run.path)}; the .pickle beside it is for "
        "https://pytorch.org/memory_viz"
    )


def summary(snapshot: Snapshot) -> str:
    """Return the sums and the ten largest allocations as text, those alike in one row."""
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    used = [block for block in blocks if block["state"] == "active_allocated"]
    reserved = sum(segment["total_size"] for segment in snapshot["segments"])
    in_use = sum(block["size"] for block in used)
    counts = Counter((block["size"], _lines(block.get("frames", ()))) for block in used)
    sums = f"torch has {reserved / MIB:,.0f} MiB, and tensors hold {in_use / MIB:,.0f} MiB of it"
    rows = [f"{sums}, in {len(used):,} allocations. The largest:"]
    largest = sorted(counts.items(), key=lambda item: -item[0][0])[:NUM_LARGEST]
    for (size, lines), count in largest:
        times = f"{count:,} × " if count > 1 else ""  # noqa: RUF001 - a product
        rows.append(f"{times}{size / MIB:,.1f} MiB")
        rows += [f"    {line}" for line in lines or ("no line of Python: backward, or before",)]
    return "\n".join(rows)


def _lines(frames: Any) -> tuple[str, ...]:
    """Return the innermost lines of a stack, and the innermost that is not torch's own."""
    places = [f"{frame['filename']}:{frame['line']} {frame['name']}" for frame in frames]
    own = [line for line in places if not any(part in line for part in _OF_TORCH)]
    kept = places[:_NUM_LINES]
    return tuple(kept if not own or own[0] in kept else [*kept[:-1], own[0]])
