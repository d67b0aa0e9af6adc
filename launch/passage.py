"""Through the gate, with the lines that people look for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from launch.gate import Gate, gate_folder
from launch.reporter import Reporter


@contextlib.contextmanager
def through_gate(
    report: Reporter, *, run_id: str, turn: int | None, waits: bool, timeout_s: float
) -> Iterator[Gate]:
    """Run the block inside the gate; with `waits` false it stands open to this process.

    `run_id` and `turn` are those of `Gate`. Raises TimeoutError, naming the holder.
    """
    waiting = contextlib.ExitStack()  # the lock.wait span, entered only by one that waits

    def on_wait(reminder: str) -> None:
        if reminder:
            report.line(f"LOCK: still waiting: {reminder}")
        else:
            waiting.enter_context(report.events.span("lock.wait"))
            report.line("LOCK: waiting for exclusive access...")

    gate = Gate(
        gate_folder(), run_id=run_id, who=report.who.lower(), turn=turn,
        timeout_s=timeout_s, on_wait=on_wait,
    )  # fmt: skip
    passage: AbstractContextManager[None] = gate.admitted() if waits else contextlib.nullcontext()
    with waiting, passage:
        waiting.close()
        with report.events.span("lock.hold"):
            report.line("LOCK: acquired! Starting initialization...")
            yield gate
            # Said before the lock is given up, so that the next one's "acquired" comes after it.
            report.line("LOCK: released")
