"""The main thread of this process, seen from another: the user's line, and whether it waits."""

from __future__ import annotations

import dis
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from types import FrameType

from rundir.paths import ROOT
from rundir.pulse import MainThread

_LOOKS = 3  # in a row, before a thread that shows nothing but its place counts as waiting
_MOST_FRAMES = 64
_IDLE_S = 0.02  # of CPU time between two looks: as much as writing stacks on request takes

# Where Python code of torch waits for other ranks, and what in there computes instead.
_WAITS_IN = (
    "/torch/distributed/distributed_c10d.py",
    "/torch/distributed/rendezvous.py",
    "/torch/distributed/_functional_collectives.py",
    "/torch/distributed/nn/functional.py",
    "/torch/distributed/utils.py",
    "/torch/distributed/elastic/utils/store.py",
    "/torch/cuda/streams.py",
)
_COMPUTES = ("_object_to_tensor", "_tensor_to_object")
_AROUND = ("wrapper", "_wrapper", "inner")  # of decorators
_SYNCHRONISES = "synchronize"  # in torch/cuda/__init__.py
# Methods in C++, which have no frame of their own: of a collective's handle, a store, a tensor.
_WAITS_BY = ("wait",)
_WAITS_WHILE_PENDING = ("item", "tolist", "cpu", "synchronize", "backward", "step", "all")
_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    *(f"{_PATHS[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<frozen",
    "<string>",  # python -c, of which the zygote is one
)
_OURS = tuple(f"{ROOT}/{name}/" for name in ("launch", "machine", "ranks", "rundir", "train"))


class MainThreadWatch:
    """A watch over the thread with the identifier `ident`; `of_script` hides frames of ours."""

    def __init__(self, ident: int, *, of_script: bool) -> None:
        self._ident, self._of_script = ident, of_script
        self._seen: object = None
        self._num_same, self._busy_s = 0, 0.0
        self._still_mono = self._waits_mono = 0.0
        self._waits_in = ""

    def observe(
        self, now: float, *, done: object = None, is_pending: bool, has_device: bool
    ) -> MainThread:
        """Return what the thread does at `now`.

        `done` changes with each collective that is called or completed. `is_pending`: one has not
        been completed for some looks. `has_device`: kernels of a GPU wait for it, and the thread
        waits for them in whatever call it stands still, and may spin.
        """
        leaf = sys._current_frames().get(self._ident)
        if leaf is None:
            return MainThread()
        frames = list(_frames(leaf))
        places = tuple((id(frame.f_code), frame.f_lasti) for frame in frames)
        has_computed = self._has_computed() and not has_device
        is_same = self._seen == (places, done) and not has_computed
        self._num_same = self._num_same + 1 if is_same else 1
        if self._num_same == 1:
            self._seen, self._still_mono = (places, done), now
        name = self._waits(frames, is_pending=is_pending, has_device=has_device)
        if not name:
            self._waits_in = ""
        elif name != self._waits_in or self._num_same == 1:
            # Not again and again the same call: each that is over is progress.
            self._waits_in, self._waits_mono = name, self._still_mono
        user = self._of_user(frames)
        return MainThread(
            file=user.f_code.co_filename,
            line=user.f_lineno or 0,
            function=user.f_code.co_name,
            still_mono=round(self._still_mono, 3),
            waits_mono=round(self._waits_mono, 3) if name else None,
            waits_in=name,
            in_lock=not name and self._num_same >= _LOOKS and _is_in_lock(leaf),
        )

    def _has_computed(self) -> bool:
        """Return whether the thread has used the processor since the last look."""
        before = self._busy_s
        self._busy_s = time.clock_gettime(time.pthread_getcpuclockid(self._ident))
        return self._busy_s - before > _IDLE_S

    def _waits(self, frames: list[FrameType], *, is_pending: bool, has_device: bool) -> str:
        """Return what the thread waits in; "" if it does not, as far as can be seen."""
        name = _collective(frames)
        if name and (is_pending or name != _SYNCHRONISES):  # else for a kernel of its own
            return name
        if self._num_same < _LOOKS:
            return ""
        leaf = frames[0]
        called = _called(leaf)
        if called in _WAITS_BY and "torch.distributed" in sys.modules:
            return called
        in_torch = "/torch/" in leaf.f_code.co_filename
        if is_pending and (has_device or called in _WAITS_WHILE_PENDING or in_torch):
            return called or leaf.f_code.co_name
        return ""

    def _of_user(self, frames: list[FrameType]) -> FrameType:
        """Return the innermost frame of the user's own code, or else of a library but torch."""
        files = [candidate.f_code.co_filename for candidate in frames]
        ours = _OURS if self._of_script else ()
        # The script itself may lie in a library's folder.
        main = getattr(sys.modules.get("__main__"), "__file__", None) if self._of_script else None
        for is_other in (is_foreign, lambda file: "/torch/" in file or file.startswith("<")):
            for frame, file in zip(frames, files, strict=True):
                if file == main or not (is_other(file) or file.startswith(ours)):
                    return frame
        return frames[0]


def is_foreign(file: str) -> bool:
    """Return whether a source file belongs to a library, and not to the user."""
    return file.startswith(_LIBRARIES) or "/site-packages/" in file


def _frames(leaf: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = leaf
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _collective(frames: list[FrameType]) -> str:
    """Return the function of torch.distributed, or the synchronising one, that is at the top."""
    name = ""
    for frame in frames:
        code = frame.f_code
        if code.co_filename.endswith(_WAITS_IN):
            if code.co_name in _COMPUTES:
                return ""
            name = name if code.co_name in _AROUND else code.co_name
        elif code.co_filename.endswith("/torch/cuda/__init__.py"):
            return code.co_name if code.co_name == _SYNCHRONISES else name
        elif not code.co_filename.endswith(("/torch/distributed/c10d_logger.py", "/contextlib.py")):
            return name
    return name


def _is_in_lock(leaf: FrameType) -> bool:
    return leaf.f_code.co_filename == threading.__file__ or _called(leaf) == "acquire"


def _called(frame: FrameType) -> str:
    """Return the name of the method or function that a frame is calling, if that is written in C.

    The last name that was loaded before the call, so an argument's if that has one.
    """
    name = ""
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset >= frame.f_lasti:
            break
        if instruction.opname in ("LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME"):
            name = str(instruction.argval)
    return name
