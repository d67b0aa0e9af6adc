"""The ranks of the collectives rung as seen from outside: started, awaited and blamed by name."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from diagnostics.probes.rung import OwnRun
from launch.checks.run_rung import last_words, quoted
from machine.processes import children
from rundir.atomic import scratch
from rundir.finding import Finding

_POLL_S = 0.05
_SETTLE_S = 2.0  # once one rank has ended, for the others to fail because of it
_STACKS_S = 0.5  # for ranks to write them
_MOST_STACKS = 2
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_SEE_KILLS = "sudo dmesg | grep -i -e oom -e killed   # for want of memory? if not, who ended it?"
_ADVICE = {
    "cpu": "GLOO_SOCKET_IFNAME=lo ./airlock check collectives   # this host's own name may stand "
    "for an address that cannot be reached: `getent hosts $(hostname)`",
    "cuda": "NCCL_DEBUG=INFO ./airlock check collectives   # names the path last; see also "
    "`nvidia-smi topo -p2p r` and `sudo dmesg | grep -i xid`",
}


class Rank:
    """One rank: its process, and the notes it has written."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.number, self.process = number, process
        self._notes, self._log = folder / f"rank{number}.jsonl", folder / f"rank{number}.log"

    def notes(self) -> list[dict[str, Any]]:
        """Return all complete notes so far."""
        if not self._notes.exists():
            return []
        lines = self._notes.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def results(self) -> dict[str, dict[str, Any]]:
        """Return the result of each stage that the rank has completed."""
        return {note["end"]: note for note in self.notes() if "end" in note}

    @property
    def stage(self) -> str:
        """The stage that the rank is in, or was in when it ended."""
        begun = [note["begin"] for note in self.notes() if "begin" in note]
        return begun[-1] if begun else "start"

    @property
    def error(self) -> tuple[float, str]:
        """The time and the text of the rank's error; (infinity, "") if it could not report one."""
        errors = ((note["t"], note["error"]) for note in self.notes() if "error" in note)
        return next(errors, (math.inf, ""))

    @property
    def is_killed(self) -> bool:
        """True if a signal has killed the rank."""
        return (self.process.poll() or 0) < 0

    @property
    def is_stopped(self) -> bool:
        """True if the process is alive but stopped."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).status() in _STOPPED
        return False

    def ask_for_stack(self) -> None:
        """Make the rank write its stacks to its log."""
        if self.notes():  # before its first note the signal would kill it
            self.process.send_signal(signal.SIGUSR2)

    def last_words(self) -> str:
        """Return the end of the rank's log, or its stacks."""
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        return quoted(last_words(text))


class RankGroup:
    """All ranks. `failure` is None until something has gone wrong."""

    def __init__(self, ranks: Sequence[Rank], device: str) -> None:
        self.ranks, self._device = ranks, device
        self.failure: Finding | None = None

    @property
    def may_be_the_path(self) -> bool:
        """True unless a rank was ended or stopped from outside, or failed before they met."""
        ended = (signal.SIGKILL, signal.SIGTERM)
        return all(
            not rank.is_stopped
            and -(rank.process.poll() or 0) not in ended
            and rank.stage not in ("start", "import")
            for rank in self.ranks
        )

    def wait(self, show_progress: Callable[[], None], timeout_s: float) -> None:
        """Wait until all have ended, one has failed, or none has written a note for `timeout_s`."""
        noted, since = -1, time.monotonic()
        while any(rank.process.poll() is None for rank in self.ranks):
            show_progress()
            if any(rank.process.poll() for rank in self.ranks):
                break
            num = sum(len(rank.notes()) for rank in self.ranks)
            if num != noted:
                noted, since = num, time.monotonic()
            if time.monotonic() - since > timeout_s:
                self.failure = self._hang(timeout_s)
                return
            time.sleep(_POLL_S)
        if any(rank.process.poll() for rank in self.ranks):
            self.failure = self._death()

    def _death(self) -> Finding:
        """Blame the rank that a signal killed, or else the first that failed.

        The others fail because of it, or go on waiting.
        """
        first = next(rank for rank in self.ranks if rank.process.poll())
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and not first.is_killed:
            first = next((rank for rank in self.ranks if rank.is_killed), first)
            time.sleep(_POLL_S)
        if first.is_killed:
            name = signal.Signals(-first.process.returncode).name
            text = f"rank {first.number} was killed by {name} in {first.stage}"
            return self._red(first.stage, text + self._others([first]), _SEE_KILLS)
        first = min(self.ranks, key=lambda rank: rank.error) if first.error[1] else first
        what = first.error[1] or f"it ended with {first.process.returncode}{first.last_words()}"
        return self._red(first.stage, f"rank {first.number} failed in {first.stage}: {what}")

    def _hang(self, timeout_s: float) -> Finding:
        """Blame the ranks that are stopped, or else those that have made the least progress."""
        stopped = [rank for rank in self.ranks if rank.is_stopped]
        if stopped:
            text = f"{_ranks(stopped)} stopped by a signal in {stopped[0].stage}"
            do = "who stops processes here: a debugger, a job's queue, Ctrl-Z?"
            return self._red(stopped[0].stage, text + self._others(stopped), do)
        for rank in self.ranks:
            rank.ask_for_stack()
        time.sleep(_STACKS_S)
        least = min(len(rank.notes()) for rank in self.ranks)
        late = [rank for rank in self.ranks if len(rank.notes()) == least]
        text = f"nothing has happened for {timeout_s:g} s: {_ranks(late)} in {late[0].stage}"
        stacks = "".join(rank.last_words() for rank in late[:_MOST_STACKS])
        return self._red(late[0].stage, text + self._others(late) + stacks)

    def _others(self, culprits: Sequence[Rank]) -> str:
        """Describe where the other ranks were, by stage."""
        by_stage: dict[str, list[Rank]] = {}
        for rank in self.ranks:
            if rank not in culprits:
                by_stage.setdefault(rank.stage, []).append(rank)
        stages = [f"{_ranks(ranks)} in {stage}" for stage, ranks in by_stage.items()]
        return f"; waiting for that: {'; '.join(stages)}" if stages else ""

    def _red(self, stage: str, text: str, do: str = "") -> Finding:
        return Finding(check=stage, ok=False, text=text, do=do or _ADVICE[self._device])


def _ranks(ranks: Sequence[Rank]) -> str:
    numbers = ", ".join(str(rank.number) for rank in ranks)
    return f"ranks {numbers} are" if len(ranks) > 1 else f"rank {numbers} is"


@contextmanager
def group_of(
    run: OwnRun, timeout_s: float, settings: Mapping[str, str] | None = None
) -> Iterator[RankGroup]:
    """Start the ranks of `run`, and make sure that none of them is left afterwards.

    `settings` are variables that they get besides those of the run.
    """
    num_ranks, ranks = run.num_ranks, list[Rank]()
    env = run.env | {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        **(settings or {}),
    }
    with scratch("collectives") as folder:
        try:
            for number in range(num_ranks):
                own = env | {"RANK": str(number), "LOCAL_RANK": str(number)}
                args = (
                    str(folder),
                    str(10 * timeout_s),
                )  # the watching process is to time out first
                process = children.start("diagnostics.probes.collective_rank", *args, env=own)
                ranks.append(Rank(number, process, folder))
            yield RankGroup(ranks, run.job.placement.device)
        finally:
            for rank in ranks:
                if rank.process.poll() is None:
                    os.killpg(rank.process.pid, signal.SIGKILL)
                rank.process.wait()


def _free_port() -> int:
    """Return a port that nobody is listening on at the moment."""
    with socket.socket(socket.AF_INET) as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
