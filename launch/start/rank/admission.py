"""Admission to the gate, with the log lines that people look for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from launch.start.gate.folder import gate_folder
from launch.start.gate.gate import Admit, Gate, Visitor
from launch.start.rank.reporter import Reporter


@contextlib.contextmanager
def through_gate(
    report: Reporter, visitor: Visitor, *, admit: Admit, timeout_s: float
) -> Iterator[Gate]:
    """Run the block inside the gate; arguments and errors are those of `Gate`."""
    waiting = contextlib.ExitStack()  # holds the lock.wait span, entered only if there is a wait

    def on_wait(reminder: str) -> None:
        if reminder:
            report.line(f"LOCK: still waiting: {reminder}")
        else:
            waiting.enter_context(report.events.span("lock.wait"))
            report.line("LOCK: waiting for exclusive access...")

    gate = Gate(gate_folder(), visitor, admit=admit, timeout_s=timeout_s, on_wait=on_wait)
    with waiting, gate.admitted() as admission:
        waiting.close()
        profile = admission.profile
        with report.events.span("lock.hold"):
            report.events.emit(
                "mark",
                "admitted",
                admit=admit,
                num_beside=admission.num_beside,
                growth_bytes=profile.peak_bytes if profile else None,
                available_bytes=admission.available_bytes,
            )
            num = admission.num_beside
            beside = f" beside {num} other{'s' if num > 1 else ''}" if num else ""
            report.line(f"LOCK: acquired! Starting initialization...{beside}")
            yield gate
            # Logged before the release, so that the next holder's "acquired" comes after it.
            report.line("LOCK: released")
