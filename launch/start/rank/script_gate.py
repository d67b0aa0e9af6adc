"""The gate for scripts: a rank enters before its script loads, and leaves to join the others."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from launch.start.gate.gate import Gate, Visitor
from launch.start.gate.ledger import anon_bytes
from launch.start.rank import zygote
from launch.start.rank.admission import through_gate
from launch.start.rank.reporter import Reporter
from rundir.config import LaunchConfig

_QUIET_S = 10.0
_QUIET_BYTES = 16 << 20  # less growth than this in that time is not loading
_LOOK_EVERY_S = 0.5


class ScriptGate:
    """The gate of one rank; it acts in this process only, not in its forks.

    `place` is a launch.start.rank.rank.RankPlace.
    """

    def __init__(self, report: Reporter, launch: LaunchConfig, run_id: str, place: Any) -> None:
        self._report, self._launch, self._run_id = report, launch, run_id
        self._attempt, self._local_rank = place.gate_attempt, place.local_rank
        self._num_ranks = place.local_world_size  # on this node, which share the gate
        self._waits = launch.admit != "open"
        self._pid = os.getpid()
        self._inside = contextlib.ExitStack()
        self._leaving = threading.Lock()
        self._has_left = self._has_met = False
        self._num_uses = 0
        self._undo: list[Callable[[], None]] = []
        self._gate: Gate | None = None
        self.at_meeting: Callable[[], object] = lambda: None  # called when the script meets others

    def enter(self) -> Gate:
        """Wait for this rank's turn and enter. Raises TimeoutError, naming the holder."""
        self._gate = self._inside.enter_context(
            self._through_gate(self._attempt, zygote.kind_of_start())
        )
        return self._gate

    def leave(self, why: str = "") -> None:
        """Leave the gate if this rank is still inside; log `why` unless it is empty."""
        if os.getpid() != self._pid:
            return
        with self._leaving:
            if self._has_left:
                return
            self._has_left = True
            with self._inside:  # closed whatever happens here
                if why:
                    self._report.line(f"LOCK: {why}")
                self._report.memory("POST-MODEL")

    def leave_when_quiet(self) -> None:
        """Start watching this process, and leave once it has nothing left to load.

        A script need not join the others at all; the next rank must not have to wait for its end.
        """
        if self._waits and self._num_ranks > 1:
            threading.Thread(target=self._watch, name="airlock-gate", daemon=True).start()

    def leave_at_first_meeting(self) -> None:
        """Arrange to leave, and wait until the others have left, when the script first meets them.

        That is at `init_process_group`, under whatever name it was imported, or at the first store
        created without it. torch must have been imported already.
        """
        import torch.distributed as dist

        if not dist.is_available():
            return
        # Imported here, while modules of ours still can be.
        from ranks.group import keep, meeting_place

        original = dist.init_process_group
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self._pid:
                return original(*args, **kwargs)
            self._meet()
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return original(*args, **kwargs)  # which says what is wrong
            with self._report.events.span("pg.init", **meeting_place(given)):
                done = original(*args, **kwargs)
            group = dist.group.WORLD
            if group is not None and "gloo" in dist.get_backend_config(group):
                keep(group)
            return done

        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get("init_process_group") is original:
                module.init_process_group = init_process_group  # type: ignore[attr-defined]
        for store in ("TCPStore", "FileStore"):
            self._hook(getattr(dist, store))

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Run the block inside the gate once more, in rank order; wait until all have left."""
        if os.getpid() != self._pid:
            yield
            return
        self.leave()
        self._num_uses += 1
        kind = f"use{self._num_uses}"  # each for something else, of equal size in all ranks
        with self._through_gate(f"{self._attempt}-{kind}", kind) as gate:
            gate.phase("loading")
            yield
            self._report.memory("POST-MODEL")
        self._wait_for_all(gate)

    def _through_gate(self, attempt: str, kind: str) -> contextlib.AbstractContextManager[Gate]:
        visitor = Visitor(
            run_id=self._run_id,
            attempt=attempt,
            who=self._report.who.lower(),
            turn=self._local_rank,
            kind=kind,
        )
        admit, timeout_s = self._launch.admit, self._launch.gate_timeout_s
        return through_gate(self._report, visitor, admit=admit, timeout_s=timeout_s)

    def _hook(self, store: Any) -> None:
        original = store.__init__

        @functools.wraps(original)
        def init(backend: Any, *args: Any, **kwargs: Any) -> None:
            if os.getpid() == self._pid:
                self._meet()
            original(backend, *args, **kwargs)

        store.__init__ = init
        self._undo.append(lambda: setattr(store, "__init__", original))

    def _meet(self) -> None:
        """Leave, and wait for the others: torch gives latecomers only a limited time."""
        if self._has_met:
            return
        self._has_met = True
        for undo in self._undo:
            undo()
        self.at_meeting()
        self.leave()
        assert self._gate is not None
        self._wait_for_all(self._gate)

    def _wait_for_all(self, gate: Gate) -> None:
        if self._waits:
            with self._report.events.span("all_loaded.wait"):
                gate.wait_until_all_passed(self._num_ranks)

    def _watch(self) -> None:
        most_bytes, since = 0, time.monotonic()
        while not self._has_left:
            now, bytes_ = time.monotonic(), anon_bytes(self._pid)
            if bytes_ > most_bytes + _QUIET_BYTES:
                most_bytes, since = bytes_, now
            elif now - since > _QUIET_S:
                self.leave(f"its memory has not grown for {_QUIET_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)
