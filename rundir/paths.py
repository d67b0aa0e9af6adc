"""The paths of everything that belongs to a run."""

from __future__ import annotations

import os
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}"  # what a run may be called
ROOT = Path(__file__).resolve().parent.parent
# Our packages that a run needs: all but the pages and the inbox.
PACKAGES = (
    *("rundir", "machine", "ranks", "state", "doctor", "setup"),
    *("train", "launch", "diagnostics"),
)


def runs_folder() -> Path:
    """Return the folder of all runs: AIRLOCK_RUNS_DIR, or `runs` in the clone."""
    return Path(os.environ.get("AIRLOCK_RUNS_DIR") or ROOT / "runs").absolute()


def cache_folder() -> Path:
    """Return the cache that many runs use: AIRLOCK_CACHE_DIR, or `.cache` in the clone."""
    return Path(os.environ.get("AIRLOCK_CACHE_DIR") or ROOT / ".cache").absolute()


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of one run folder; naming them neither reads nor creates anything."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's name, unique on this machine: time, name or profile, 4 hex digits."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The resolved configuration, each value with its source as a comment."""
        return self.path / "config.toml"

    @property
    def plan(self) -> Path:
        """The memory predicted for the run's GPUs and the host; absent for a script."""
        return self.path / "plan.json"

    @property
    def command(self) -> Path:
        """The command that was typed, and the torchrun command that it became."""
        return self.path / "command.txt"

    @property
    def owner(self) -> Path:
        """The process that started the run: host, pid, time, command; locked while it lives."""
        return self.path / "owner.json"

    @property
    def environment(self) -> Path:
        """The variables set for the ranks, and those not passed on, each with its reason."""
        return self.path / "environment.json"

    @property
    def made_with(self) -> Path:
        """The versions of the libraries, and the commit of the clone."""
        return self.path / "made_with.json"

    @property
    def status(self) -> Path:
        """The current state of the run, one JSON object, replaced as a whole."""
        return self.path / "status.json"

    @property
    def events(self) -> Path:
        """The events, one append-only JSON-lines file for each writer."""
        return self.path / "events"

    @property
    def control(self) -> Path:
        """Requests to the run: files named stop, pause, save, … (rundir/control.py)."""
        return self.path / "control"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints: folders step_XXXXXXXX, complete only with their marker."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """The trained adapters alone, as peft writes them; absent unless some were trained."""
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
        """Data for people to look at: some samples, and the rows left out."""
        return self.path / "data"

    @property
    def data_files(self) -> Path:
        """The files that were trained and evaluated on, with size and SHA-256."""
        return self.data / "files.json"

    def data_of_hub(self, field: str, number: int = 0) -> Path:
        """Return the folder of links to a dataset of the Hub, the `number`-th in data.`field`."""
        return self.path / (f"base_data_{field}_{number}" if number else f"base_data_{field}")

    @property
    def incidents(self) -> Path:
        """The evidence that a failed or hung run has left."""
        return self.path / "incidents"

    def incident(self, attempt: int) -> Path:
        """Return the folder about the end of one attempt: verdict, logs, stacks, flight records."""
        return self.incidents / f"incident-attempt{attempt}"

    @property
    def incident_archive(self) -> Path:
        """All incidents in one file, to attach to a bug report; secrets are masked in it."""
        return self.incidents / f"{self.run_id}-incident.zip"

    @property
    def traces(self) -> Path:
        """What `airlock trace` has recorded: for each rank a trace, and its longest operations."""
        return self.path / "traces"

    def pulse(self, rank: int) -> Path:
        """Return the file with the progress of rank `rank` (rundir/pulse.py)."""
        return self.path / "progress" / f"rank{rank}"

    def stacks(self, who: str) -> Path:
        """Return the file with the stacks of `rankN` or the `zygote`, written when requested."""
        return self.path / "progress" / f"stacks-{who}.txt"

    def flight_record(self, rank: int) -> Path:
        """Return the file with the last collectives of rank `rank`, which it writes when asked."""
        return self.path / "progress" / f"flight-rank{rank}.json"

    @property
    def agent_log(self) -> Path:
        """The output of torch's elastic agent."""
        return self.path / "logs" / "agent.log"

    @property
    def zygote_log(self) -> Path:
        """The output of the zygote."""
        return self.path / "logs" / "zygote.log"

    @property
    def run_log(self) -> Path:
        """The lines of the run's console, as plain text; secrets are masked."""
        return self.path / "logs" / "run.log"

    @property
    def monitor_log(self) -> Path:
        """The output of the monitor beside the run, with its token: for this user alone."""
        return self.path / "logs" / "monitor.log"

    def track_log(self, tracker: str) -> Path:
        """Return the log of tracking with `tracker`: `tensorboard`, `wandb` or `trackio`."""
        return self.path / "logs" / f"track-{tracker}.log"

    @property
    def elastic(self) -> Path:
        """A folder that torch's elastic agent needs for itself."""
        return self.path / "logs" / "elastic"

    def event_file(self, writer: str) -> Path:
        """Return the events of one writer: `launch`, `agent`, `zygote`, `prepare` or `rankN`."""
        return self.events / f"{writer}.jsonl"

    def rank_log(self, rank: int, attempt: int) -> Path:
        """Return the log of rank `rank` in attempt `attempt` (0 is the first)."""
        return self.path / "logs" / f"attempt{attempt}" / f"rank{rank}.log"

    def evolution(self, dataset: str, step: int) -> Path:
        """Return the snapshot of the model's answers on `dataset` at `step`."""
        return self.path / "evolution" / dataset / f"step_{step:08d}.json"


def create_run(name: str, *, is_latest: bool = True) -> RunDir:
    """Create a new run folder, with `name` in its own name, and point `latest` at it if asked to.

    Raises OSError when the folder cannot be created (no space, no permission).
    """
    parent = runs_folder()
    parent.mkdir(parents=True, exist_ok=True)
    run = _new_run(parent, name)
    for folder in (
        run.events,
        run.control,
        run.checkpoints,
        run.incidents,
        run.agent_log.parent,
    ):
        folder.mkdir()
    if is_latest:
        _point_latest_at(run)
    return run


def _new_run(parent: Path, name: str) -> RunDir:
    """Create a folder of its own; retry, as two runs of one second may draw the same name."""
    for is_last in (False, False, True):
        stamp = time.strftime("%Y%m%d-%H%M%S")
        run = RunDir(parent / f"{stamp}-{name}-{secrets.token_hex(2)}")
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
    link.replace(run.path.parent / "latest")  # in one step: `latest` is never a dangling link


def find_run(name: str) -> RunDir:
    """Return the run called `name`: a path, a run id, `latest`, or a name that one run was given.

    Raises ValueError, naming what was tried, when there is none, or several were given that name.
    """
    for path in (Path(name), runs_folder() / name):
        if (path / "config.toml").is_file():
            return RunDir(path.resolve())
    given = _given(name)
    if len(given) == 1:
        return given[0]
    if given:
        ids = ", ".join(run.run_id for run in given)
        raise ValueError(f"{len(given)} runs are called {name}: {ids}")
    raise ValueError(f"no run {name!r}: neither a run folder nor a run in {runs_folder()}")


def _given(name: str) -> list[RunDir]:
    """Return the runs that were given `name`: TIME-NAME-XXXX is what their folders are called."""
    if not re.fullmatch(NAME, name):
        return []
    folders = runs_folder().glob(f"2*-{name}-????")
    is_its = re.compile(rf"\d{{8}}-\d{{6}}-{re.escape(name)}-[0-9a-f]{{4}}")
    return [
        RunDir(path.resolve())
        for path in sorted(folders)
        if is_its.fullmatch(path.name) and (path / "config.toml").is_file()
    ]


def shown(path: Path) -> str:
    """Return `path` relative to the working directory if it is below it, else as it is."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # the latter: that directory has been removed
        return str(path)
