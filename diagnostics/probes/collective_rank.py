"""`python -m diagnostics.probes.collective_rank FOLDER TIMEOUT_S`: a rank of that rung.

The ranks form a process group as those of a training do. Each records the stages it begins and
their results, as lines of JSON in FOLDER/rankN.jsonl, so that the watching process knows who waits
for whom.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from diagnostics.probes.result import last_line
from launch.start.rank.reporter import write_output_to
from rundir.events import EventWriter
from rundir.units import MIB

T = TypeVar("T")

MEET = "meet"
TYPES = ("int64", "float32", "bfloat16")
_NUM_ELEMENTS = 4099  # not a multiple of anything that work is divided by
_REDUCED_BYTES = {"cpu": 16 * MIB, "cuda": 256 * MIB}
_SENT_BYTES = {"cpu": 8 * MIB, "cuda": 64 * MIB}
_NUM_TIMES = 5
_ROUND_OFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}


def pair_name(rank: int, other: int) -> str:
    """Return the name of the exchange between two ranks."""
    return f"pair {rank}-{other}"


class Notes:
    """The stages and results of this rank, written for the watching process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **fields: Any) -> None:
        """Append one note, immediately."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    def stage(self, name: str, action: Callable[..., T], *args: Any) -> T:
        """Run `action` as that stage and note its end, with its result if that is a dict."""
        self.write(begin=name)
        figures = action(*args)
        self.write(end=name, **(figures if isinstance(figures, dict) else {}))
        return figures


def main() -> None:
    """Meet, all-reduce, and exchange with every other rank."""
    folder, timeout_s, rank = Path(sys.argv[1]), float(sys.argv[2]), int(os.environ["RANK"])
    write_output_to(folder / f"rank{rank}.log", folder / f"rank{rank}.stacks")
    notes = Notes(folder / f"rank{rank}.jsonl")
    try:
        _exchange(notes, timeout_s, rank)
    except Exception as error:  # noqa: BLE001 - whatever it is, the watcher must learn of it
        notes.write(error=last_line(error), t=time.time())
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # destructors of a broken group can wait forever for missing ranks


def _exchange(notes: Notes, timeout_s: float, rank: int) -> None:
    device = notes.stage("import", _device)
    from ranks.group import meet, part

    ranks = notes.stage(MEET, meet, device, EventWriter(Path(os.devnull)), timeout_s)
    for name in TYPES:
        notes.stage(f"all-reduce {name}", reduce, name, ranks)
    notes.stage("bandwidth", measure, ranks)
    for pair in combinations(range(ranks.world_size), 2):
        if rank in pair:
            notes.stage(pair_name(*pair), exchange, ranks, *pair)
        ranks.wait()  # one pair after another, so that each is measured alone
    notes.stage("part", part, ranks)


def _device() -> Any:
    import torch

    from ranks.group import rank_device

    device = rank_device(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def reduce(dtype_name: str, ranks: Any) -> dict[str, Any]:
    """All-reduce numbers whose sum every rank knows; `wrong` describes the first mismatch, if any.

    Integers are summed exactly. A floating-point sum of n numbers is off by no more than
    (n-1)u/(1-(n-1)u) times the sum of their magnitudes, in any order (Higham, Accuracy and
    Stability of Numerical Algorithms, 4.2), and is rounded to its type at most once more.
    """
    import torch
    import torch.distributed as dist

    dtype, size = getattr(torch, dtype_name), ranks.world_size
    inputs = [_input(dtype, rank) for rank in range(size)]
    reduced = inputs[ranks.rank].to(ranks.device, copy=True)
    dist.all_reduce(reduced)
    result = reduced.cpu()
    digest = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
    if not dtype.is_floating_point:
        exact = torch.stack(inputs).sum(0)
        is_wrong = result != exact
    else:
        exact = torch.stack(inputs).double().sum(0)
        bound = size * _ROUND_OFF[dtype_name]
        limit = bound / (1 - bound) * torch.stack(inputs).double().abs().sum(0)
        is_wrong = ~((result.double() - exact).abs() <= limit)
    if not is_wrong.any():
        return {"digest": digest}
    at = int(is_wrong.nonzero()[0])
    wrong = f"element {at} of the sum is {result[at].item():g}, not {exact[at].item():g}"
    return {"digest": digest, "wrong": f"{wrong} ({int(is_wrong.sum())} of {len(exact)} are wrong)"}


def _input(dtype: Any, rank: int) -> Any:
    import torch

    if not dtype.is_floating_point:
        return torch.arange(_NUM_ELEMENTS, dtype=dtype) * (rank + 1) + rank
    generator = torch.Generator().manual_seed(rank)
    return (torch.rand(_NUM_ELEMENTS, generator=generator) - 0.5).to(dtype)


def measure(ranks: Any) -> dict[str, Any]:
    """Return the seconds of a large all-reduce and the bus bandwidth that results.

    That is bytes / seconds · 2(n-1)/n: what each rank has to send and receive whatever the
    algorithm, so that it can be compared with the speed of the links (NVIDIA/nccl-tests,
    doc/PERFORMANCE.md).
    """
    import torch
    import torch.distributed as dist

    num_bytes = _REDUCED_BYTES[ranks.device.type]
    tensor = torch.ones(num_bytes // 4, dtype=torch.float32, device=ranks.device)
    seconds = _timed(lambda: dist.all_reduce(tensor), ranks)
    share = 2 * (ranks.world_size - 1) / ranks.world_size
    bus = num_bytes / seconds * share
    return {"seconds": seconds, "num_bytes": num_bytes, "bus_bytes_per_s": bus}


def exchange(ranks: Any, rank: int, other: int) -> dict[str, Any]:
    """Send a block from `one` to `other`, which checks it and sends it back, changed."""
    import torch
    import torch.distributed as dist

    num = _SENT_BYTES[ranks.device.type] // 8
    sent = torch.arange(num, dtype=torch.int64, device=ranks.device) + (rank * 1000 + other)
    got = torch.empty_like(sent)
    peer, is_first = (other, True) if ranks.rank == rank else (rank, False)

    def there_and_back() -> None:
        if is_first:
            dist.send(sent, peer)
            dist.recv(got, peer)
        else:
            dist.recv(got, peer)
            dist.send(got + 1, peer)

    seconds = _timed(there_and_back, ranks, waits=False)
    expected = sent + 1 if is_first else sent
    num_wrong = int((got != expected).sum())
    figures = {"seconds": seconds, "bytes_per_s": 2 * num * 8 / seconds}
    if num_wrong:
        figures["wrong"] = f"{num_wrong:,} of {num:,} numbers arrived changed"  # type: ignore[assignment]
    return figures


def _timed(action: Callable[[], Any], ranks: Any, *, waits: bool = True) -> float:
    """Return the median time of an action, without the first call, which sets up connections."""
    import torch

    seconds = []
    for _ in range(_NUM_TIMES + 1):
        if waits:
            ranks.wait()
        begun = time.perf_counter()
        action()
        if ranks.device.type == "cuda":
            torch.cuda.synchronize(ranks.device)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
