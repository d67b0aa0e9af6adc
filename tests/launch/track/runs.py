"""Run folders with a few metrics in them, like those of a run."""

from __future__ import annotations

from pathlib import Path

from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.events import EventWriter
from rundir.paths import RunDir

TRAIN = {"lr": 1e-3, "grad_norm": 2.0, "tokens_per_s": 900.0}
TRAIN |= {"time_data_s": 0.25, "time_comm_s": 0.5}
ON_CPU = dict.fromkeys(("mfu", "time_forward_s", "time_backward_s", "time_optimizer_s"))
HOST = {"pss_bytes": 700, "pss_anon_bytes": 600, "num_processes": 5, "available_bytes": 9000}


class MadeRun:
    """A run folder, and its writers of metrics."""

    def __init__(self, path: Path) -> None:
        self.run = RunDir(path / "20261121-000000-tiny-beef")
        for folder in (self.run.path, self.run.events, self.run.agent_log.parent):
            folder.mkdir()
        self.run.config.write_text(config_text(RunConfig(profile="tiny"), {}))
        self.rank0 = EventWriter(self.run.event_file("rank0"), rank=0)
        self.launch = EventWriter(self.run.event_file("launch"))

    def steps(self, first: int, last: int, loss: float = 0.0) -> None:
        """Write the metrics of those steps; the loss of each is its number plus `loss`."""
        for step in range(first, last + 1):
            self.rank0.emit("metric", "train", step=step, loss=loss + step, **TRAIN, **ON_CPU)

    def restart(self, first_step: int) -> None:
        """Make rank 0 resume from the checkpoint after `first_step`."""
        self.rank0.begin_attempt(1)
        self.rank0.emit(
            "mark",
            "train.plan",
            total_steps=9,
            first_step=first_step,
            num_parameters=1,
            num_trainable=1,
            num_train_samples=1,
            num_eval_samples=0,
        )
