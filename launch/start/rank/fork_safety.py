"""Fork safety of this process: a single thread, and CUDA not initialised."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_ENDING_S = 0.5  # a thread that was joined may still be visible for a moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of inspecting this process."""

    num_threads: int
    cuda_touched: bool  # as torch, or the driver's device file, tells
    other_threads: tuple[str, ...] = ()  # the names that the kernel has for them

    @property
    def why_not_to_fork(self) -> str | None:
        """The reason why a fork of this process could hang or fail, or None if forking is safe."""
        if self.cuda_touched:
            return "CUDA was initialised in it, which no fork can use again"
        if self.other_threads:
            names = ", ".join(sorted(set(self.other_threads)))
            return (
                f"it has {self.num_threads} threads ({names}): a fork would inherit the locks of "
                "all of them, and only one thread to release them"
            )
        return None


def inspect(*, with_a_fork: bool = False) -> Inspection:
    """Inspect this process as the kernel shows it; `with_a_fork` also asks torch in a fork of it.

    Only a fork is told that torch has called the CUDA runtime, as counting devices does where NVML
    cannot be asked: there torch refuses CUDA.
    """
    deadline = time.monotonic() + _ENDING_S
    while (others := _other_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    touched = cuda_is_touched() or (with_a_fork and not others and _forks_are_refused_cuda())
    return Inspection(
        num_threads=1 + len(others), cuda_touched=touched, other_threads=tuple(others)
    )


def _other_threads() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        if task.name == str(os.getpid()):
            continue
        with contextlib.suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text().strip())
    return names


def cuda_is_touched() -> bool:
    """Return whether torch, or any library below it, has initialised CUDA in this process.

    torch knows only about its own calls. Any caller of the driver's cuInit opens the device of
    unified memory; NVML, which only queries, does not.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that lists the folder
            if str(descriptor.readlink()).startswith("/dev/nvidia-uvm"):
                return True
    return False


def _forks_are_refused_cuda() -> bool:
    if "torch" not in sys.modules:
        return False
    from ranks.torch_compat import was_forked_with_cuda

    pid = os.fork()
    if pid == 0:
        os._exit(int(was_forked_with_cuda()))
    _, status = os.waitpid(pid, 0)
    # Without a GPU it does not matter. Asking calls the CUDA runtime, which torch has done by now.
    return os.waitstatus_to_exitcode(status) != 0 and bool(sys.modules["torch"].cuda.is_available())
