"""The gate: admits processes that import and load one at a time, or as many as memory allows.

A process that wants to enter takes the *node lock*, one file for all runs of this user on the node,
inspects the ledger of those inside and the host's memory, and either adds itself to the ledger or
releases the lock and tries again. The values of `admit` are:

* `serial`: one process is inside at a time;
* `auto`: the first rank of a kind goes alone and is measured, unless one like it was measured in an
  earlier run; then as many are inside as there are cores and memory for (the host's available
  memory, less what those inside may still use, less a reserve);
* `open`: nobody waits.

All locks are kernel locks: a process that dies inside has left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from launch.start.gate.ledger import Ledger, LedgerEntry, own_entry
from launch.start.gate.memory_profile import MemoryProfile, MemoryProfiler, ProfileStore
from launch.start.gate.turns import Turn, lock_file, try_lock
from machine.cores.cores import usable_cores
from machine.memory.host_memory import HostMemory
from rundir.errors import ExitCode, UserError
from rundir.units import GIB, MIB

Admit = Literal["auto", "serial", "open"]

_POLL_S = 0.02
_JUDGE_S = 0.2  # available memory also changes while nobody enters or leaves
_REMIND_S = 10.0
_HOPELESS_S = 60.0  # with nobody inside to free memory, others may still free theirs
_MARGIN = 1.1  # the ranks of a run differ little
_MARGIN_BYTES = 32 * MIB
_RESERVE = 0.05  # of all memory, for unaccounted use
_SPARE_CORES = 0.5  # a single busy thread measures as a little more than one core


@dataclasses.dataclass(frozen=True, slots=True)
class Admission:
    """An admission: the number of others inside, and the expected need (None: unknown)."""

    num_beside: int
    profile: MemoryProfile | None
    available_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A process at the gate. `turn` is its place among those of the same run and attempt, from 0.

    The zygote, which precedes all of them, has none. Visitors of the same `kind` take the same
    memory: what one took predicts the need of the next, also in later runs with the same
    `known_as`, unless that is empty.
    """

    run_id: str
    attempt: str
    who: str
    turn: int | None
    kind: str = "rank"
    known_as: str = ""


class Gate:
    """The passage of one visitor. `on_wait` is called with "" at first, then with reminders."""

    def __init__(
        self,
        folder: Path,
        visitor: Visitor,
        *,
        admit: Admit,
        timeout_s: float,
        on_wait: Callable[[str], None],
    ) -> None:
        self._folder, self._visitor, self._admit = folder, visitor, admit
        self._run = folder / "runs" / visitor.run_id
        known = visitor.known_as and f"{visitor.known_as}-{visitor.kind}"
        self._notes = ProfileStore(
            self._run / f"{visitor.kind}.growth", folder / "growth" / known if known else None
        )
        self._turn: Turn | None = None
        if visitor.turn is not None:
            self._turn = Turn(self._run / visitor.attempt, visitor.turn, self._tick)
        self._ledger = Ledger(folder / "ledger")
        self._entry: LedgerEntry | None = None
        self._memory, self._cores = HostMemory(), usable_cores()
        self._on_wait, self._timeout_s = on_wait, timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._waited_since: float | None = None
        self._reminded = 0.0
        self._alone_since: float | None = None

    @contextlib.contextmanager
    def admitted(self) -> Iterator[Admission]:
        """Wait until this process is admitted, and run the block inside.

        Raises TimeoutError, naming who is inside, after the timeout; UserError if the memory it
        needs is not available, or the gate's folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                admission = self._come_in(stack)
            except TimeoutError:
                raise
            except OSError as error:
                raise UserError(
                    f"the gate cannot write to {self._folder}: {error}",
                    do="free space there, or AIRLOCK_GATE_DIR=/a/local/folder/of/yours",
                    code=ExitCode.PREFLIGHT,
                ) from error
            yield admission

    def phase(self, name: str) -> None:
        """Record what this process does now, for those who wait."""
        if self._entry is not None:
            self._entry = dataclasses.replace(self._entry, phase=name, since_mono=time.monotonic())
            with contextlib.suppress(OSError):  # a full disk must not end a rank that is inside
                self._ledger.write(self._entry)

    def wait_until_all_passed(self, num_ranks: int) -> None:
        """Wait, without a timeout, until all ranks of this node and attempt have left the gate."""
        if self._turn is not None:
            self._deadline = float("inf")
            self._waited_since = self._reminded = time.monotonic()  # a new wait, outside the gate
            self._turn.wait_until_all_passed(num_ranks)

    def _come_in(self, stack: contextlib.ExitStack) -> Admission:
        """Wait for admission, and stay inside until `stack` is closed."""
        if self._turn is not None:
            stack.enter_context(self._turn.here())
            if self._admit != "open":
                self._turn.wait()
        if self._admit == "open":
            admission = Admission(0, None, self._memory.now().available_bytes)
        else:
            admission = self._enter(stack)
            stack.enter_context(self._measured())
        if self._turn is not None:
            self._turn.is_in()
        return admission

    def _enter(self, stack: contextlib.ExitStack) -> Admission:
        node_lock = lock_file(self._folder / "gate.lock")
        answer: Admission | str = "another process is being let in"
        judged: tuple[int, float] | None = None
        while True:
            version, now = self._ledger.version(), time.monotonic()
            is_due = judged is None or judged[0] != version or now - judged[1] > _JUDGE_S
            if is_due and try_lock(node_lock):
                judged = (version, now)
                try:
                    answer = self._decide(self._ledger.inside())
                    if isinstance(answer, Admission):
                        self._write_entry(stack, answer)
                        return answer
                finally:
                    node_lock.release()
            self._tick(str(answer))

    def _decide(self, inside: list[LedgerEntry]) -> Admission | str:
        """Return the admission, or what this process has to wait for."""
        now = self._memory.now()
        profile = None if self._admit == "serial" else self._notes.read()
        if profile is None:  # it goes alone
            return _held_by(inside) if inside else Admission(0, None, now.available_bytes)
        if any(entry.exclusive for entry in inside):
            return _held_by([entry for entry in inside if entry.exclusive])
        if not inside:
            # Only what was measured is certain to be needed, not the margin and the reserve.
            return self._judge_alone(profile, now.available_bytes, now.where)
        self._alone_since = None
        busy = sum(entry.cores for entry in inside) + profile.cores
        if busy > self._cores.number + _SPARE_CORES:  # they would only take turns on the cores
            return f"{self._cores.counted} are busy with those inside: {_held_by(inside)}"
        wanted = sum(entry.wanted_bytes for entry in inside) + _with_margin(profile.peak_bytes)
        room = now.available_bytes - int(_RESERVE * now.total_bytes)
        if wanted <= room:
            return Admission(len(inside), profile, now.available_bytes)
        return (
            f"{room / GIB:.2f} GiB of {now.where} can be had, {wanted / GIB:.2f} GiB are wanted by "
            f"this one and by those inside: {_held_by(inside)}"
        )

    def _judge_alone(self, profile: MemoryProfile, available: int, where: str) -> Admission | str:
        if profile.peak_bytes <= available:
            self._alone_since = None
            return Admission(0, profile, available)
        self._alone_since = self._alone_since or time.monotonic()
        short = (
            f"{self._visitor.who} needs {profile.peak_bytes / GIB:.2f} GiB of memory to come up, "
            f"as those before it did, and {available / GIB:.2f} GiB of {where} can be had"
        )
        if time.monotonic() - self._alone_since > _HOPELESS_S:
            raise UserError(
                f"{short}, with nobody else at the gate",
                do="fewer ranks (--num-gpus), or free memory: `ps aux --sort -rss` lists it",
                code=ExitCode.DOES_NOT_FIT,
            )
        return short

    def _write_entry(self, stack: contextlib.ExitStack, admission: Admission) -> None:
        self._entry = own_entry(self._visitor.run_id, self._visitor.who)
        if profile := admission.profile:
            self._entry = dataclasses.replace(
                self._entry,
                exclusive=False,
                growth_bytes=_with_margin(profile.peak_bytes),
                cores=profile.cores,
            )
        stack.enter_context(self._ledger.entered(self._entry))

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        """Measure what the block takes, for later ranks; the zygote is not measured."""
        if self._admit != "auto" or self._visitor.turn is None:
            yield
            return
        with MemoryProfiler() as measuring:
            yield
        with contextlib.suppress(OSError):  # a full disk: the next rank goes alone as well
            self._notes.write(self._visitor.turn, measuring.profile())

    def _tick(self, whom: str) -> None:
        """Wait for one round. Raises TimeoutError after the deadline."""
        now = time.monotonic()
        if self._waited_since is None:
            self._waited_since = self._reminded = now
            self._on_wait("")
        if now > self._deadline:
            raise TimeoutError(
                f"the gate did not open within {self._timeout_s:.0f} s: {whom}; "
                "launch.gate_timeout_s sets the limit"
            )
        if now - self._reminded >= _REMIND_S:
            self._reminded = now
            self._on_wait(f"{whom}; waited {now - self._waited_since:.0f} s")
        time.sleep(_POLL_S)


def _held_by(inside: list[LedgerEntry]) -> str:
    return f"held by {' and by '.join(map(str, inside))}"


def _with_margin(growth_bytes: int) -> int:
    return int(growth_bytes * _MARGIN) + _MARGIN_BYTES
