"""Trial of an address-space limit: reserve as much as a rank does, start as many threads, and CUDA.

The trial runs in a process of its own, `python machine/memory/address_probe.py`, which needs no
packages; the launcher itself never touches CUDA. Near its limit Python can wait forever for a
thread that never started, so an alarm signal ends each part of the trial after a timeout.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_LONGEST_S = 5
# Without persistence mode the driver wakes one GPU after another, seconds each.
_LONGEST_CUDA_S = 60
_PROT_NONE = 0
_SEGMENT_BYTES = 20 << 20  # the unit that torch reserves for its large pool (CUDACachingAllocator)
_CUDA_BEGINS = "cuda"  # printed before the first call of the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTrial:
    """What is tried: with `limit_bytes` None there is no limit but the hard one.

    With `num_pools` above 0, CUDA is initialised as in a rank: cuInit, a context on the first
    visible GPU, and 9/8 of its memory reserved for each pool of torch's allocator.
    """

    limit_bytes: int | None
    reserved_bytes: int
    num_threads: int
    num_pools: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The result of a trial. `failure` is None if it succeeded."""

    failure: str | None = None
    in_cuda: bool = False  # the failure is of CUDA
    cuda_skipped: str = ""  # why CUDA was not tried although it should have been
    peak_bytes: int = 0  # the most address space it has reserved, of a success


def probe(trial: LimitTrial, env: Mapping[str, str] | None = None) -> ProbeResult:
    """Carry out a trial in a child process with the environment `env`; None means this one's."""
    command = [sys.executable, "-I", "-S", str(Path(__file__)), json.dumps(asdict(trial))]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=env,
    )
    lines = done.stdout.splitlines()
    in_cuda = _CUDA_BEGINS in lines
    if done.returncode == 0:
        return ProbeResult(**json.loads(lines[-1]))
    if done.returncode == -signal.SIGALRM:
        what = f"start CUDA within {_LONGEST_CUDA_S} s"
        if not in_cuda:
            what = f"start {trial.num_threads} threads within {_LONGEST_S} s"
        return ProbeResult(failure=f"it did not {what}", in_cuda=in_cuda)
    results = [line for line in lines if line != _CUDA_BEGINS]
    text = (results[-1] if results else done.stderr.strip())[-200:]
    if done.returncode < 0:
        text = f"signal {-done.returncode} ended it {text}".strip()
    return ProbeResult(failure=text or f"it ended with {done.returncode}", in_cuda=in_cuda)


def _main() -> None:
    signal.alarm(_LONGEST_S)  # SIGALRM ends the process by default
    trial = LimitTrial(**json.loads(sys.argv[1]))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard if trial.limit_bytes is None else trial.limit_bytes
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    doing = f"reserve {trial.reserved_bytes / 2**30:.2f} GiB"
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        held = mmap.mmap(-1, max(1, trial.reserved_bytes), flags=flags, prot=_PROT_NONE)
        doing = f"start {trial.num_threads} threads"
        end = threading.Event()
        for _ in range(trial.num_threads):
            threading.Thread(target=end.wait).start()
        doing = "start CUDA"
        skipped = _start_cuda(trial.num_pools) if trial.num_pools else ""
        end.set()
        held.close()
    except (OSError, MemoryError, RuntimeError) as error:
        _say(f"it cannot {doing}: {error or 'out of memory'}")
        os._exit(1)  # without waiting for the threads that did start
    _say(json.dumps({"cuda_skipped": skipped, "peak_bytes": _peak_bytes()}))
    os._exit(0)  # the driver frees all at exit; its own clean-up takes time


def _start_cuda(num_pools: int) -> str:
    """Start CUDA and reserve addresses as a rank does; return why not, if the driver is missing.

    Raises RuntimeError if a call fails.
    """
    signal.alarm(_LONGEST_CUDA_S)
    _say(_CUDA_BEGINS)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"libcuda.so.1 cannot be loaded: {error}"
    check = _checker(cuda)
    number, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    total = ctypes.c_size_t()
    check("cuInit", ctypes.c_uint(0))
    check("cuDeviceGetCount", ctypes.byref(number))
    if number.value == 0:
        return "libcuda sees no GPU"
    check("cuDeviceGet", ctypes.byref(device), 0)
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    check("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    # As torch's ExpandableSegment does: 9/8 of the GPU, in whole segments (c10/cuda,
    # CUDACachingAllocator.cpp).
    segments = -(-(total.value + total.value // 8) // _SEGMENT_BYTES)
    for _ in range(num_pools):
        address, size = ctypes.c_uint64(), ctypes.c_size_t(segments * _SEGMENT_BYTES)
        zero = ctypes.c_uint64(0)
        check("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
    return ""


def _checker(cuda: ctypes.CDLL) -> Callable[..., None]:
    """Return a function that calls one of the driver, and raises RuntimeError if that fails."""

    def check(name: str, *args: object) -> None:
        code = getattr(cuda, name)(*args)
        if code == 0:
            return
        text = ctypes.c_char_p()
        with contextlib.suppress(AttributeError):
            cuda.cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'error').decode()} ({code})")

    return check


def _peak_bytes() -> int:
    """Return VmPeak: the most addresses that this process has had reserved (proc(5))."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmPeak:"):
            return int(line.split()[1]) * 1024
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
