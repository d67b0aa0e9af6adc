"""Where everything of a run lies."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def runs_folder() -> Path:
    """Where runs lie: AIRLOCK_RUNS_DIR, or `runs` in the clone."""
    return Path(os.environ.get("AIRLOCK_RUNS_DIR") or ROOT / "runs").absolute()


def cache_folder() -> Path:
    """What is made once and used by many runs: AIRLOCK_CACHE_DIR, or `.cache` in the clone."""
    return Path(os.environ.get("AIRLOCK_CACHE_DIR") or ROOT / ".cache").absolute()


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of one run folder; nothing is read or made by naming them."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's name, unique on this machine: time, profile, four random hex digits."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The resolved configuration, each value with its source as a comment."""
        return self.path / "config.toml"

    @property
    def plan(self) -> Path:
        """What the run was predicted to take of its GPUs and the host; not of a script's."""
        return self.path / "plan.json"

    @property
    def command(self) -> Path:
        """The command that was typed, and the torchrun command it came to."""
        return self.path / "command.txt"

    @property
    def environment(self) -> Path:
        """The variables set for the ranks, and those not passed on, each with its reason."""
        return self.path / "environment.json"

    @property
    def status(self) -> Path:
        """The state of the run now, one JSON object, replaced whole."""
        return self.path / "status.json"

    @property
    def events(self) -> Path:
        """One append-only JSON-lines file for each writer."""
        return self.path / "events"

    @property
    def control(self) -> Path:
        """Requests to the run: files named stop, pause, resume."""
        return self.path / "control"

    @property
    def checkpoints(self) -> Path:
        """Folders step_XXXXXXXX, whole only with their marker."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """The trained adapters alone, as peft writes them; not there unless some were trained."""
        return self.path / "adapter"

    @property
    def model(self) -> Path:
        """The trained model as an ordinary Hugging Face folder."""
        return self.path / "model"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files, made from the metrics among the events."""
        return self.path / "tensorboard"

    @property
    def data(self) -> Path:
        """What people may want to see of the data: some samples, and the rows left out."""
        return self.path / "data"

    def data_of_hub(self, field: str, number: int = 0) -> Path:
        """Links to the files of a dataset of the Hub, the `number`-th that data.`field` names."""
        return self.path / (f"base_data_{field}_{number}" if number else f"base_data_{field}")

    @property
    def incidents(self) -> Path:
        """What a run that failed or hung has left to look at."""
        return self.path / "incidents"

    def incident(self, attempt: int) -> Path:
        """What is known of the end of one attempt: verdict, logs, stacks, flight records."""
        return self.incidents / f"incident-attempt{attempt}"

    @property
    def incident_archive(self) -> Path:
        """All of that in one file, to attach to a bug report; secrets are masked in it."""
        return self.incidents / f"{self.run_id}-incident.zip"

    def pulse(self, rank: int) -> Path:
        """How far rank `rank` is (rundir/pulse.py)."""
        return self.path / "progress" / f"rank{rank}"

    def stacks(self, who: str) -> Path:
        """The stacks of `rankN` or the `zygote`, whenever Airlock has asked for them."""
        return self.path / "progress" / f"stacks-{who}.txt"

    def flight_record(self, rank: int) -> Path:
        """The last collectives of rank `rank`, as it told them when it was asked to."""
        return self.path / "progress" / f"flight-rank{rank}.json"

    @property
    def agent_log(self) -> Path:
        """What torch's elastic agent printed."""
        return self.path / "logs" / "agent.log"

    @property
    def zygote_log(self) -> Path:
        """What the zygote printed."""
        return self.path / "logs" / "zygote.log"

    def track_log(self, tracker: str) -> Path:
        """What tracking with `tracker` printed: `tensorboard`, `wandb` or `trackio`."""
        return self.path / "logs" / f"track-{tracker}.log"

    @property
    def elastic(self) -> Path:
        """A folder that torch's elastic agent wants for itself."""
        return self.path / "logs" / "elastic"

    def event_file(self, writer: str) -> Path:
        """The events of one writer: `launch`, `agent`, `zygote`, `prepare` or `rankN`."""
        return self.events / f"{writer}.jsonl"

    def rank_log(self, rank: int, attempt: int) -> Path:
        """What rank `rank` printed in attempt `attempt` (0 is the first)."""
        return self.path / "logs" / f"attempt{attempt}" / f"rank{rank}.log"

    def evolution(self, dataset: str, step: int) -> Path:
        """A snapshot of the model's answers on `dataset` at `step`."""
        return self.path / "evolution" / dataset / f"step_{step:08d}.json"


def create_run(profile: str) -> RunDir:
    """Make a new run folder and point `latest` at it.

    Raises OSError when the folder cannot be made (no space, no permission).
    """
    parent = runs_folder()
    parent.mkdir(parents=True, exist_ok=True)
    run = _new_run(parent, profile)
    for folder in (
        run.events,
        run.control,
        run.checkpoints,
        run.incidents,
        run.agent_log.parent,
    ):
        folder.mkdir()
    _point_latest_at(run)
    return run


def _new_run(parent: Path, profile: str) -> RunDir:
    """A folder of its own: of many runs made in one second two may draw the same name."""
    for is_last in (False, False, True):
        stamp = time.strftime("%Y%m%d-%H%M%S")
        run = RunDir(parent / f"{stamp}-{profile}-{secrets.token_hex(2)}")
        try:
            run.path.mkdir()
        except FileExistsError:
            if is_last:
                raise
        else:
            return run
    raise AssertionError


def _point_latest_at(run: RunDir) -> None:
    link = run.path.parent / f".latest.{run.run_id}"
    link.symlink_to(run.run_id)
    link.replace(run.path.parent / "latest")  # in one step: `latest` never points nowhere


def find_run(name: str) -> RunDir:
    """The run called `name`: a path, a run id, or `latest`.

    Raises ValueError, naming what was tried, when there is none.
    """
    for path in (Path(name), runs_folder() / name):
        if (path / "config.toml").is_file():
            return RunDir(path.resolve())
    raise ValueError(f"no run {name!r}: neither a run folder nor a run in {runs_folder()}")


def shown(path: Path) -> str:
    """`path` from the working directory where it is below it, else whole."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
