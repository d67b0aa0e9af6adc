"""In each phase of a real run of two ranks, each control does what it says, or says why not."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rundir.paths import RunDir
from rundir.status import read_status
from tests.conftest import ROOT
from tests.integration.test_controls import curve, phase_of
from tests.launch.start.gate.visits import RANK
from tests.running import (
    ENDLESS,
    User,
    as_options,
    assert_nothing_left,
    ended,
    events_of,
    finish,
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
_ANSWERS = {
    "pause": "paused after step",
    "save": "saved the checkpoint after step",
    "evaluate": "held-out loss",
    "set": "train.keep_checkpoints is 20 from step",
    "trace": "recording step",
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
    while os.environ.get("RANK", "0") == "0" and {when} and not (here / "go-{phase}").exists():
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


def until_phase(phase: str, run: RunDir) -> None:
    wait_for(lambda: phase_of(run) == phase, why=f"it is not {phase}", timeout_s=PATIENT_S)


class Holds:
    """The phases in which a run is held, by files in one folder."""

    def __init__(self, user: User, *phases: str) -> None:
        self._folder, self._environ = user.folder, user.environ
        self._gate_log = user.folder / "gate.log"
        self.env: dict[str, str] = {}
        for phase in phases:
            if phase not in ("gate", "paused"):
                module, name, when = _PLACES[phase]
                body = _HOLD.format(name=name, folder=str(user.folder), when=when, phase=phase)
                self.env = user.hooked(module, body)

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
            until_phase("paused", run)
        else:
            at = self._folder / f"at-{phase}"
            wait_for(at.exists, why=f"it never came to {phase}", timeout_s=PATIENT_S)

    def go(self, phase: str) -> None:
        """Let the run go on."""
        (self._folder / f"go-{phase}").touch()
        if phase == "gate":
            Path(f"{self._gate_log}.go0").touch()


class Typed:
    """Commands typed in terminals beside a run."""

    def __init__(self, user: User, run: RunDir) -> None:
        self._user, self._run = user, run

    def begin(self, control: str) -> subprocess.Popen[str]:
        """Type a control; do not wait for the answer."""
        named = [self._run.run_id if word == "R" else word for word in CONTROLS[control]]
        patient = [] if control == "stop" else ["--timeout-s", str(PATIENT_S)]
        return self._user.airlock(*named, *patient)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for the answer; return the exit code and all that was printed."""
        code, out, err = finish(process, timeout_s=PATIENT_S)
        return code, out + err

    def __call__(self, control: str) -> tuple[int, str]:
        """Type a control, and wait for its answer."""
        return self.end(self.begin(control))


class Terminals:
    """All controls at once, and their answers."""

    def __init__(self, typed: Typed, run: RunDir) -> None:
        self._typed, self._run = typed, run
        self._open: list[tuple[str, subprocess.Popen[str]]] = []

    def type_all(self, controls: Iterable[str]) -> None:
        """Type them at once; return when the run's folder holds what each asks for."""
        asked = [(control, self._typed.begin(control)) for control in controls]
        self._open += asked

        def is_there(control: str, process: subprocess.Popen[str]) -> bool:
            name = "profile" if control == "trace" else control
            return process.poll() is not None or any(self._run.control.glob(f"{name}*"))

        for one in asked:
            wait_for(lambda one=one: is_there(*one), why=f"{one[0]} asks for nothing")  # type: ignore[misc]

    def typed(self, *, but: str = "") -> None:
        """Wait for the answer of each; all have done it."""
        left = [one for one in self._open if one[0] == but]
        for control, process in self._open:
            if control != but:
                code, text = self._typed.end(process)
                assert code == 0, text
                assert _ANSWERS[control] in text
        self._open = left


def withdrawn(typed: Typed, run: RunDir) -> None:
    """Ask to pause and, before it does, to go on; both say what became of it."""
    pause = typed.begin("pause")
    wait_for((run.control / "pause").exists, why="no request")
    code, text = typed("resume")
    assert (code, "was not paused yet, and will not be" in text) == (0, True), text
    code, text = typed.end(pause)
    assert (code, "another command had it go on" in text) == (2, True), text


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_each_control_at_each_phase_of_one_run_and_its_losses_are_bitwise_the_same(
    user: User,
) -> None:
    user.output_of(*WHOLE, timeout_s=PATIENT_S)
    undisturbed = user.run()
    holds = Holds(user, *PHASES, "exporting")
    with holds.gate_taken(), ended(user.airlock(*WHOLE, env=holds.env)) as process:
        wait_for(lambda: user.run().path != undisturbed.path, why="no second run")
        run = user.run()
        wait_for(run.status.exists, why="no status")
        typed = Typed(user, run)
        terminals = Terminals(typed, run)
        once = ("save", "evaluate", "set", "trace")
        for phase in ("preparing", "gate", "loading"):
            holds.until(phase, run)
            code, text = typed("resume")
            assert (code, "is not paused: it is" in text) == (0, True), text
            withdrawn(typed, run)
            terminals.type_all(once)
            holds.go(phase)
        for phase in ("first step", "training", "evaluating", "saving"):
            holds.until(phase, run)
            until_phase("training", run)
            code, text = typed("resume")
            assert (code, "is not paused: it is training" in text) == (0, True), text
            terminals.type_all(("pause", *once))
            holds.go(phase)
            terminals.typed(but="trace")
            until_phase("paused", run)
            if phase == "first step":
                code, text = typed("pause")
                assert (code, "is paused already, after step 2" in text) == (0, True), text
                terminals.type_all(once)
                terminals.typed(but="trace")
                until_phase("paused", run)
            code, text = typed("resume")
            assert (code, "goes on after step" in text) == (0, True), text
            terminals.typed()
        holds.until("exporting", run)
        until_phase("finishing", run)
        for control in ("pause", *once):
            code, text = typed(control)
            assert (code, "has trained all its steps" in text) == (2, True), text
        code, text = typed("resume")
        assert (code, "is not paused: it is finishing" in text) == (0, True), text
        holds.go("exporting")
        code, _, err = finish(process, timeout_s=PATIENT_S)
    assert code == 0, err
    for control in ("pause", "resume", *once, "stop"):
        code, text = typed(control)
        assert (code, "is over: done" in text) == (2, True), text
    assert curve(run) == curve(undisturbed)
    assert len(curve(run)) == STEPS
    assert list(run.control.iterdir()) == []
    assert_nothing_left(run)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "phase",
    [
        one if one == "training" else pytest.param(one, marks=pytest.mark.long)
        for one in (*PHASES, "paused", "exporting")
    ],
)
def test_a_stop_typed_twice_at_once_ends_the_run_which_saves_if_there_is_something_to_save(
    user: User, phase: str
) -> None:
    holds = Holds(user, phase)
    gate = holds.gate_taken() if phase == "gate" else contextlib.nullcontext()
    with gate, ended(user.airlock(*WHOLE, env=holds.env)) as process:
        run = user.run()
        wait_for(run.status.exists, why="no status")
        typed = Typed(user, run)
        if phase == "paused":
            (run.control / "pause").touch()
        holds.until(phase, run)
        stops = [typed.begin("stop"), typed.begin("stop")]
        wait_for(
            lambda: (run.control / "stop").exists() or process.poll() is not None,
            why="nobody is asked to stop",
        )
        holds.go(phase)
        code, out, err = finish(process, timeout_s=PATIENT_S)
        told = [typed.end(one) for one in stops]
    expected = {"preparing": 21, "gate": 21, "loading": 21, "exporting": 0}.get(phase, 20)
    assert code == expected, out + err
    over = "done" if phase == "exporting" else "interrupted"
    assert all(one[0] in (0, 2) for one in told)  # 2: it was over before that one had looked
    assert any(one[0] == 0 for one in told)
    assert all(over in one[1] for one in told), told
    assert not read_status(run).get("preempted")  # as a scheduler's would
    if code == 20:
        assert f"--resume runs/{run.run_id}" in out
    assert_nothing_left(run)
