"""A small DDP training on gloo and CPU that really fails, in one chosen way.

    torchrun --standalone --nproc-per-node=2 tests/sabotage.py sigkill
    ./start.sh tests/sabotage.py sigkill      # the same, with a report and `./airlock doctor`

The last rank breaks, in step 3; the others know nothing of it. `--help` lists the failures. Some
need surroundings that a script cannot create: `memory` a memory cgroup, `low-pids` a pids limit,
`tiny-shm` a small /dev/shm, and `full-disk` a --folder on a small disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BROKEN_STEP = 3
FOR_EVER_S = 3600.0
BIG_BYTES = 64 << 20


class Bytes(torch.utils.data.Dataset[torch.Tensor]):
    """Samples of `num_bytes`, made by `make`, for the workers of a DataLoader."""

    def __init__(self, num_bytes: int, make: Callable[[int], torch.Tensor] = torch.ones) -> None:
        self.num_bytes, self.make = num_bytes, make

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.make(self.num_bytes // 4)


def mismatched_shape(_: Path) -> None:
    """It brings a tensor of another shape to a collective than the others do."""
    dist.all_reduce(torch.ones(7 + dist.get_rank()))


def sigstop(_: Path) -> None:
    """It is stopped by a signal, and never continued."""
    os.kill(os.getpid(), signal.SIGSTOP)


def sigkill(_: Path) -> None:
    """It is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def uneven_data(_: Path) -> None:
    """It has fewer batches than the others, and goes on to the end of the epoch."""
    dist.barrier()


def full_disk(folder: Path) -> None:
    """It saves a checkpoint, on a disk that has no room for it."""
    torch.save({"weights": torch.ones(BIG_BYTES // 4)}, folder / f"rank{dist.get_rank()}.pt")


def tiny_shm(_: Path) -> None:
    """Its DataLoader passes large batches through a /dev/shm that has no room for them."""
    for _batch in torch.utils.data.DataLoader(Bytes(BIG_BYTES), batch_size=4, num_workers=1):
        pass


def low_address_space(_: Path) -> None:
    """It allocates more than RLIMIT_AS allows."""
    now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + BIG_BYTES,) * 2)
    torch.ones(BIG_BYTES)


def low_open_files(_: Path) -> None:
    """It keeps more files open than RLIMIT_NOFILE allows."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    for _number in range(64):
        os.open(__file__, os.O_RDONLY)


def low_pids(_: Path) -> None:
    """It starts more threads than its pids limit allows."""
    for _number in range(4096):
        threading.Thread(target=time.sleep, args=(FOR_EVER_S,), daemon=True).start()


def memory(_: Path) -> None:
    """It takes more and more memory, until somebody ends it."""
    held = []
    while True:
        held.append(b"x" * (8 << 20))
        time.sleep(0.02)  # slowly, like reads from a disk: a watcher has time to react


def port_in_use(_: Path) -> None:
    """It is to listen on a port that is already in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        dist.TCPStore("127.0.0.1", other.getsockname()[1], is_master=True)  # type: ignore[attr-defined]


def stale_build_lock(folder: Path) -> None:
    """It builds an extension in a folder that a killed build has left locked."""
    from torch.utils.cpp_extension import load_inline

    (folder / "lock").touch()
    load_inline("sabotaged", cpp_sources="", build_directory=str(folder))


def fork_after_cuda(_: Path) -> None:
    """A DataLoader's worker uses CUDA, which the rank had initialised before it forked.

    Without a GPU torch is told that this is so, and raises what it would raise there.
    """
    if torch.cuda.is_available():
        torch.cuda.init()
    else:
        rank_pid = os.getpid()
        torch.cuda._is_in_bad_fork = lambda: os.getpid() != rank_pid

    def on_gpu(num: int) -> torch.Tensor:
        return torch.ones(num, device="cuda")

    next(iter(torch.utils.data.DataLoader(Bytes(8, on_gpu), num_workers=1)))


def partial_shard(folder: Path) -> None:
    """It loads weights of which a download has fetched only half."""
    from safetensors.torch import load_file, save_file

    path = folder / "model-00001-of-00002.safetensors"
    save_file({"weight": torch.ones(1 << 16)}, path)
    os.truncate(path, path.stat().st_size // 2)
    load_file(path)


def python_error(_: Path) -> None:
    """It has a bug in its code."""
    raise ZeroDivisionError("a mistake in the loop")


def none(_: Path) -> None:
    """Nothing is broken."""


class Untidy:
    """Fails in a place where Python reports the error and goes on."""

    def __del__(self) -> None:
        raise ZeroDivisionError("a mistake in a destructor")


def scary(folder: Path) -> None:
    """It prints what sounds like a failure, and is none."""
    print("[W1122 10:00:00.000000000 socket.cpp:767] [c10d] The client socket cannot be made")
    print("The current process just got forked, after parallelism has already been used.")
    print("0 errors, 0 failed; timeout=600, killed=0", file=sys.stderr)
    warnings.warn("CUDA initialization: Found no NVIDIA driver on your system.", stacklevel=1)
    Untidy()
    try:
        python_error(folder)
    except ZeroDivisionError:
        traceback.print_exc()
        print("this batch is skipped", flush=True)


FAILURES: dict[str, Callable[[Path], None]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        mismatched_shape,
        sigstop,
        sigkill,
        uneven_data,
        full_disk,
        tiny_shm,
        low_address_space,
        low_open_files,
        low_pids,
        memory,
        port_in_use,
        stale_build_lock,
        fork_after_cuda,
        partial_shard,
        python_error,
        none,
        scary,
    )
}


def main() -> None:
    """Train, and break as requested."""
    args = _arguments()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout_s))
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, args.steps + 1):
        if step == BROKEN_STEP and rank == num_ranks - 1:
            FAILURES[args.failure](args.folder or Path(tempfile.mkdtemp(prefix="sabotage-")))
        loss = model(torch.randn(8, 32)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
        time.sleep(args.step_s)
    dist.barrier()
    dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    said = {name: (one.__doc__ or "").splitlines()[0] for name, one in FAILURES.items()}
    listed = "\n".join(f"  {name:<18} {text}" for name, text in said.items())
    parser = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=f"failures:\n{listed}"
    )
    parser.add_argument("failure", choices=FAILURES, metavar="FAILURE")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds to sleep in each")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of collectives")
    parser.add_argument("--folder", type=Path, help="where it writes, else a new one in /tmp")
    return parser.parse_args()


if __name__ == "__main__":
    main()
