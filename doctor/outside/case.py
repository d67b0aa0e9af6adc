"""A job that was looked at from outside, and the form of a verdict on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from doctor.logs.verdict import Evidence, Verdict, written_verdict
from doctor.outside.observe import ObservedProcess
from doctor.outside.running_job import RunningJob
from doctor.outside.spy import INSTALL

_MOST_SHOWN = 4
_MANY = 8  # ranks that are told one by one


class Case:
    """A job, and what was seen of its ranks."""

    def __init__(self, job: RunningJob, seen: Sequence[ObservedProcess], pid: int) -> None:
        self.job, self.pid = job, pid
        self.gone = tuple(sorted({*job.missing, *(rank.rank for rank in seen if rank.is_gone)}))
        self.seen = [rank for rank in seen if not rank.is_gone]
        self.has_stacks = all(rank.stack is not None for rank in self.seen)
        self.span_s = max((rank.span_s for rank in self.seen), default=0.0)

    def who(self, rank: ObservedProcess) -> str:
        """Return the name of a rank."""
        return self.job.who(rank.rank)

    def verdict(
        self,
        key: str,
        *,
        first: ObservedProcess | None = None,
        confidence: float | None = None,
        **words: object,
    ) -> Verdict:
        """Create a verdict of verdicts.toml, with what every rank does, and its line as evidence.

        Its texts have `words` in them, and what is known of the `first` rank: `who` it is, the line
        `at` which it is, a command to `show` that.
        """
        known: dict[str, object] = {"pid": self.pid, "first": first}
        if first is not None:
            known |= {"who": self.who(first), "at": first.where, "show": first.show}
        others = [rank for rank in self.seen if rank is not first]
        shown = [rank for rank in (first, *others) if rank is not None][:_MOST_SHOWN]
        doings = "; ".join(f"{self.who(rank)} {rank.doing}" for rank in self.seen[:_MANY])
        more = f"; and {len(self.seen) - _MANY} more" if len(self.seen) > _MANY else ""
        looked_at = f"Looked at for {self.span_s:.0f} s: {doings}{more}." if doings else ""
        verdict = written_verdict(f"outside.{key}", known | words, confidence=confidence)
        return replace(
            verdict,
            rank=first.rank if first and not self.job.is_alone else None,
            title=verdict.title[0].upper() + verdict.title[1:],
            why=" ".join(part for part in (verdict.why, looked_at, self._caveat()) if part),
            fix=verdict.fix + self._ask_for_py_spy(),
            evidence=tuple(_evidence(self.who(rank), rank) for rank in shown if rank.last.main),
        )

    def _caveat(self) -> str:
        caveats = []
        if self.job.by_order:
            caveats.append("Ranks are numbered in the order in which they were started.")
        elsewhere = self.job.world_size - len(self.seen) - len(self.gone)
        if elsewhere > 0:
            caveats.append(f"{elsewhere} of {self.job.world_size} ranks are not on this machine.")
        without = next((rank for rank in self.seen if rank.stack is None), None)
        if without:
            caveats.append(f"Python stacks are not known: {without.last.why_not}.")
        return " ".join(caveats)

    def _ask_for_py_spy(self) -> str:
        without = next((rank for rank in self.seen if rank.stack is None), None)
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


def _evidence(who: str, rank: ObservedProcess) -> Evidence:
    call = rank.own or rank.last.main[0]
    return Evidence(
        call.file, call.line, f"{who} (pid {rank.pid}) is in {call.where}: {rank.source}"
    )
