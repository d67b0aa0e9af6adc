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


class _Below:
    """The path of one file or folder of a run."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, run: RunDir, _: type[RunDir]) -> Path:
        return run.path.joinpath(*self._parts)


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of one run folder; naming them neither reads nor creates anything."""

    path: Path

    config = _Below("config.toml")  # the resolved configuration; each value's source in a comment
    plan = _Below("plan.json")  # memory predicted for the run's GPUs and the host; not of a script
    command = _Below("command.txt")  # what was typed, and the torchrun command that it became
    # The process that started the run: host, pid, time, command; locked while it lives.
    owner = _Below("owner.json")
    # The variables set for the ranks, and those not passed on, each with its reason.
    environment = _Below("environment.json")
    made_with = _Below("made_with.json")  # the versions of the libraries, the commit of the clone
    prepared = _Below("prepared.json")  # what was made ready for the ranks (rundir/prepared.py)
    status = _Below("status.json")  # the current state of the run, replaced as a whole
    events = _Below("events")  # one append-only JSON-lines file for each writer
    control = _Below("control")  # requests to the run: stop, pause, save, … (rundir/control.py)
    checkpoints = _Below("checkpoints")  # folders step_XXXXXXXX, complete only with their marker
    adapter = _Below("adapter")  # the trained adapters alone, as peft writes them, if any
    model = _Below("model")  # the trained model as an ordinary Hugging Face folder
    tensorboard = _Below("tensorboard")  # its event files, made from the metrics among the events
    data = _Below("data")  # for people to look at: some samples, and the rows left out
    # The files that were trained and evaluated on, with size and SHA-256.
    data_files = _Below("data", "files.json")
    incidents = _Below("incidents")  # the evidence that a failed or hung run has left
    traces = _Below("traces")  # by `airlock trace`: for each rank a trace, its longest operations
    agent_log = _Below("logs", "agent.log")  # the output of torch's elastic agent
    zygote_log = _Below("logs", "zygote.log")
    run_log = _Below("logs", "run.log")  # the console's lines as plain text; secrets are masked
    # The output of the monitor beside the run, with its token: for this user alone.
    monitor_log = _Below("logs", "monitor.log")
    elastic = _Below("logs", "elastic")  # a folder that torch's elastic agent needs for itself

    @property
    def run_id(self) -> str:
        """The folder's name, unique on this machine: time, name or profile, 4 hex digits."""
        return self.path.name

    @property
    def incident_archive(self) -> Path:
        """All incidents in one file, to attach to a bug report; secrets are masked in it."""
        return self.incidents / f"{self.run_id}-incident.zip"

    def data_of_hub(self, field: str, number: int = 0) -> Path:
        """Return the folder of links to a dataset of the Hub, the `number`-th in data.`field`."""
        return self.path / (f"base_data_{field}_{number}" if number else f"base_data_{field}")

    def incident(self, attempt: int) -> Path:
        """Return the folder about the end of one attempt: verdict, logs, stacks, flight records."""
        return self.incidents / f"incident-attempt{attempt}"

    def pulse(self, rank: int) -> Path:
        """Return the file with the progress of rank `rank` (rundir/pulse.py)."""
        return self.path / "progress" / f"rank{rank}"

    def stacks(self, who: str) -> Path:
        """Return the file with the stacks of `rankN` or the `zygote`, written when requested."""
        return self.path / "progress" / f"stacks-{who}.txt"

    def flight_record(self, rank: int) -> Path:
        """Return the file with the last collectives of rank `rank`, which it writes when asked."""
        return self.path / "progress" / f"flight-rank{rank}.json"

    def track_log(self, tracker: str) -> Path:
        """Return the log of tracking with `tracker`: `tensorboard`, `wandb` or `trackio`."""
        return self.path / "logs" / f"track-{tracker}.log"

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
