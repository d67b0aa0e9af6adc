"""Run folders as left by runs, written by the code that runs use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from doctor.logs.verdict import Verdict
from doctor.runs.run_folder import of_run, read_state
from launch.run.supervise.ask_doctor import advice, examined
from rundir.config import RunConfig, ScriptConfig
from rundir.config_file import config_text
from rundir.errors import ExitCode
from rundir.events import EventWriter, read_events
from rundir.paths import RunDir, create_run
from rundir.status import RankStatus, Status, write_status
from tests.state import story

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 12, in <module>
    main()
  File "/home/u/train.py", line 7, in main
    model(batch)
"""
TRAIN = story.TRAIN | {"loss": 1.0, "mfu": None}
MEMORY = {"available_bytes": 1 << 20, "limit_bytes": 1 << 31, "where": "the host"}


class Story:
    """One run, as told by the files that its processes write."""

    def __init__(self, num_ranks: int = 2, *, script: bool = False) -> None:
        self.run: RunDir = create_run("tiny")
        of_script = ScriptConfig(path="train.py") if script else None
        config = RunConfig(profile="tiny", script=of_script)
        self.run.config.write_text(config_text(config, {}), encoding="utf-8")
        self.attempt = 0
        ranks = [RankStatus(rank=rank) for rank in range(num_ranks)]
        self.status = Status(
            run_id=self.run.run_id,
            profile="tiny",
            phase="training",
            started_t=time.time(),
            launch_pid=2**22 + 1,
            ranks=ranks,
        )
        write_status(self.run, self.status)

    def tell(self, writer: str, kind: str, name: str, **fields: object) -> None:
        """Write one event of `writer`: `launch`, `agent`, `zygote` or `rankN`."""
        rank = int(writer.removeprefix("rank")) if writer.startswith("rank") else None
        events = EventWriter(self.run.event_file(writer), rank=rank, attempt=self.attempt)
        events.emit(kind, name, **fields)
        events.close()

    def exited(self, rank: int, exitcode: int, signal: str | None = None) -> None:
        self.tell("agent", "error", "rank.exit", failed_rank=rank, exitcode=exitcode, signal=signal)

    def prints(self, rank: int, text: str) -> Path:
        log = self.run.rank_log(rank, self.attempt)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(text)
        return log

    def raises(self, rank: int, exception: str) -> None:
        """Record an exception, in the log and in the rank's message to the launcher."""
        self.prints(rank, f"step 1\n{TRACEBACK}{exception}\n")
        name, _, message = exception.partition(": ")
        self.tell(
            f"rank{rank}",
            "error",
            "rank.exception",
            exception=name,
            message=message,
            traceback=f"{TRACEBACK}{exception}\n",
            exit_code=int(ExitCode.RANK_FAILED),
        )
        self.exited(rank, 1)

    def ends(
        self, phase: str = "failed", code: ExitCode = ExitCode.RANK_FAILED, error: str = "it"
    ) -> None:
        self.status.phase, self.status.exit_code, self.status.error = phase, int(code), error
        write_status(self.run, self.status)

    def judged(self, **end: Any) -> Verdict:
        """Return the doctor's verdict once the run has ended so."""
        self.ends(**end)
        return of_run(self.run)

    def report(self) -> list[str]:
        """Return what the report of the run says of its failure."""
        self.ends()
        state = read_state(self.run, read_events(self.run.events))
        return advice(examined(self.run, state), state)
