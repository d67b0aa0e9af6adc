"""A job that was looked at from outside, and the form of a verdict on it."""

from __future__ import annotations

from collections.abc import Sequence

from doctor.logs.verdict import Evidence, Verdict
from doctor.outside.job import Job
from doctor.outside.look import Seen
from doctor.outside.spy import INSTALL

_MOST_SHOWN = 4
_MANY = 8  # ranks that are told one by one


class Case:
    """A job, and what was seen of its ranks."""

    def __init__(self, job: Job, seen: Sequence[Seen], pid: int) -> None:
        self.job, self.pid = job, pid
        self.gone = tuple(sorted({*job.missing, *(one.rank for one in seen if one.is_gone)}))
        self.seen = [one for one in seen if not one.is_gone]
        self.has_stacks = all(one.stack is not None for one in self.seen)
        self.span_s = max((one.span_s for one in self.seen), default=0.0)

    def who(self, one: Seen) -> str:
        """Return the name of a rank."""
        return self.job.who(one.rank)

    def verdict(
        self,
        cause: str,
        title: str,
        why: str = "",
        *,
        first: Seen | None = None,
        fix: str,
        confidence: float,
        is_proven: bool = False,
    ) -> Verdict:
        """Create a verdict, with what every rank does, and the lines they are at as evidence."""
        others = [one for one in self.seen if one is not first]
        shown = [one for one in (first, *others) if one is not None][:_MOST_SHOWN]
        told = "; ".join(f"{self.who(one)} {one.doing}" for one in self.seen[:_MANY])
        more = f"; and {len(self.seen) - _MANY} more" if len(self.seen) > _MANY else ""
        look = f"Looked at for {self.span_s:.0f} s: {told}{more}." if told else ""
        return Verdict(
            cause=cause,
            rank=first.rank if first and not self.job.is_alone else None,
            title=title[0].upper() + title[1:],
            why=" ".join(one for one in (why, look, self._caveat()) if one),
            fix=fix + self._ask_for_py_spy(),
            confidence=confidence,
            is_proven=is_proven,
            evidence=tuple(_evidence(self.who(one), one) for one in shown if one.last.main),
        )

    def _caveat(self) -> str:
        told = []
        if self.job.by_order:
            told.append("Ranks are numbered in the order in which they were started.")
        elsewhere = self.job.world_size - len(self.seen) - len(self.gone)
        if elsewhere > 0:
            told.append(f"{elsewhere} of {self.job.world_size} ranks are not on this machine.")
        without = next((one for one in self.seen if one.stack is None), None)
        if without:
            told.append(f"Python stacks are not known: {without.last.why_not}.")
        return " ".join(told)

    def _ask_for_py_spy(self) -> str:
        without = next((one for one in self.seen if one.stack is None), None)
        if without is None:
            return ""
        if without.last.why_not == "py-spy is not installed":
            return f"\n  {INSTALL}   # then ask again: it shows the line that each rank is at"
        if "does not allow" in without.last.why_not:
            return (
                "\n  cat /proc/sys/kernel/yama/ptrace_scope   # must be 0 to read your own "
                "processes, or ask as root; a container needs --cap-add SYS_PTRACE"
            )
        return ""


def _evidence(who: str, one: Seen) -> Evidence:
    call = one.own or one.last.main[0]
    return Evidence(call.file, call.line, f"{who} (pid {one.pid}) is in {call.where}: {one.source}")
