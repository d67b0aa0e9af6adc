"""Real runs that are held in a phase until a test lets them go on, and controls typed meanwhile."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rundir.paths import RunDir
from rundir.status import read_status
from tests.conftest import ROOT
from tests.launch.start.gate.visits import RANK
from tests.running import (
    ENDLESS,
    Start,
    as_options,
    ended,
    events_of,
    finish,
    hooked,
    run_folder,
    wait_for,
)

# Every command that controls a live run; "R" stands for the run.
CONTROLS = {
    "pause": ("pause", "R"),
    "resume": ("resume", "R"),
    "save": ("save", "R"),
    "evaluate": ("evaluate", "--live", "R"),
    "set": ("set", "R", "train.keep_checkpoints=20"),
    "trace": ("trace", "R", "--steps", "1"),
    "stop": ("stop", "R"),
}
PATIENT_S = 900

STEPS, EVALUATED, SAVED = 18, 10, 14
WHOLE = (
    *ENDLESS,
    *as_options(
        f"train.max_steps={STEPS}",
        f"train.eval_every_steps={EVALUATED}",
        f"train.checkpoint_every_steps={SAVED}",
        "data.max_eval_samples=4",
    ),
    *("--set", f"data.eval_path={ROOT / 'examples/tiny/heldout.jsonl'}"),
    *as_options("launch.threads_per_rank=1", "launch.admit=serial"),
)

_HOLD = """
import time
from pathlib import Path
real, here = module.{name}, Path({folder!r})
def held(*args, **kwargs):
    while os.environ.get("RANK", "0") == "{rank}" and {when} and not (here / "go-{phase}").exists():
        (here / "at-{phase}").touch()
        time.sleep(0.05)
    return real(*args, **kwargs)
module.{name} = held
"""
_IN_EVALUATION = "args[0]._ranks.pulse._step == {step}"

# Where a phase is held: the module, what is called there, and which call it is. In the steps it is
# after the ranks have looked for requests.
_PLACES = {
    "preparing": ("train.data.architecture", "check_is_causal", "True"),
    "loading": ("train.worker", "load", "True"),
    "first step": ("train.step.loop", "Trainer.update", "args[0]._step == 0"),
    "training": ("train.step.loop", "Trainer.update", "args[0]._step == 5"),
    "evaluating": (
        "train.evaluation.evaluator",
        "Evaluator._losses",
        _IN_EVALUATION.format(step=EVALUATED),
    ),
    "saving": ("train.step.checkpoint", "save", f"args[1] == {SAVED}"),
    "exporting": ("train.worker", "write_results", "True"),
}
PHASES = ("preparing", "gate", "loading", "first step", "training", "evaluating", "saving")


class Holds:
    """The phases in which a run is held, by files in one folder."""

    def __init__(self, folder: Path, environ: dict[str, str], *phases: str, rank: int = 0) -> None:
        """`rank`: the one that is held; the others wait for it."""
        self._folder, self._environ, self._rank = folder, environ, rank
        self._gate_log = folder / "gate.log"
        self.env: dict[str, str] = {}
        for phase in phases:
            if phase not in ("gate", "paused"):
                self.hold(phase, *_PLACES[phase])

    def hold(self, phase: str, module: str, name: str, when: str) -> None:
        """Hold the call of `name` for which `when` is true, as a phase."""
        body = _HOLD.format(
            name=name, folder=str(self._folder), when=when, phase=phase, rank=self._rank
        )
        self.env = hooked(self._environ, self._folder, module, body)

    @contextlib.contextmanager
    def gate_taken(self) -> Iterator[None]:
        """Have a rank of another run stay inside the gate until `go("gate")`."""
        gate = self._environ["AIRLOCK_GATE_DIR"]
        args = (gate, "another-run", "0", "serial", "2000", "1", "False", str(self._gate_log))
        other = subprocess.Popen([sys.executable, "-P", "-c", RANK, *args], env=self._environ)
        try:
            wait_for(lambda: "in " in self._said(), why="nobody is inside the gate")
            yield
        finally:
            other.kill()
            other.wait()

    def _said(self) -> str:
        return self._gate_log.read_text() if self._gate_log.exists() else ""

    def until(self, phase: str, run: RunDir) -> None:
        """Wait until the run is held in `phase`."""
        if phase == "gate":
            wait_for(
                lambda: events_of(run, "start", "lock.wait"),
                why="no rank waits at the gate",
                timeout_s=PATIENT_S,
            )
        elif phase == "paused":
            wait_for(
                lambda: phase_of(run) == "paused", why="it was not paused", timeout_s=PATIENT_S
            )
        else:
            at = self._folder / f"at-{phase}"
            wait_for(at.exists, why=f"it never came to {phase}", timeout_s=PATIENT_S)

    def go(self, phase: str) -> None:
        """Let the run go on."""
        (self._folder / f"go-{phase}").touch()
        if phase == "gate":
            Path(f"{self._gate_log}.go0").touch()


class Typed:
    """Commands typed in terminals beside a run, and what each answered."""

    def __init__(self, airlock: Start, run: RunDir) -> None:
        self._airlock, self._run = airlock, run
        self.answers: dict[tuple[str, str], tuple[int, str]] = {}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Type a control or other words, in which "R" is the run; do not wait for the answer."""
        words = CONTROLS[words[0]] if words[0] in CONTROLS and len(words) == 1 else words
        named = [self._run.run_id if word == "R" else word for word in words]
        patient = [] if named[0] == "stop" else ["--timeout-s", str(PATIENT_S)]
        return self._airlock(*named, *patient)

    def end(self, process: subprocess.Popen[str], phase: str, control: str) -> tuple[int, str]:
        """Wait for the answer; return the exit code and all that was printed."""
        code, out, err = finish(process, timeout_s=PATIENT_S)
        self.answers[phase, control] = code, out + err
        return code, out + err

    def __call__(self, control: str, phase: str) -> tuple[int, str]:
        """Type a control, and wait for its answer."""
        return self.end(self.begin(control), phase, control)

    def table(self) -> str:
        """Return what was answered, a row for each phase and control."""
        rows = []
        for (phase, control), (code, text) in self.answers.items():
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            shown = " / ".join(lines).replace(self._run.run_id, "RUN")
            rows.append(f"{phase:<11} {control:<9} {code:>3}  {shown[:230]}")
        return "\n".join(rows)


def phase_of(run: RunDir) -> str:
    """Return the phase in the run's status, "" without one."""
    try:
        return str(read_status(run)["phase"])
    except (OSError, ValueError, KeyError):
        return ""


def curve(*runs: RunDir) -> list[tuple[int, float, float]]:
    """Return step, loss and gradient norm of each step, in the order of the steps."""
    events = [event for run in runs for event in events_of(run, "metric", "train")]
    return sorted({(event["step"], event["loss"], event["grad_norm"]) for event in events})


def undisturbed_run(airlock: Start, environ: dict[str, str]) -> RunDir:
    """Return a run of the same steps that nobody has disturbed."""
    with ended(airlock(*WHOLE)) as process:
        code, _, err = finish(process, timeout_s=PATIENT_S)
    assert code == 0, err
    return run_folder(environ)


def next_run(environ: dict[str, str], before: RunDir) -> RunDir:
    """Return the run that has been started after `before`, once it has a status."""
    wait_for(lambda: run_folder(environ).path != before.path, why="no second run")
    run = run_folder(environ)
    wait_for(run.status.exists, why="no status")
    return run
