"""In each phase of a real run of two ranks, each control does what it says, or says why not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from rundir.paths import RunDir
from rundir.status import read_status
from tests.holding import (
    PATIENT_S,
    PHASES,
    STEPS,
    WHOLE,
    Holds,
    Typed,
    curve,
    next_run,
    phase_of,
    undisturbed_run,
)
from tests.running import (
    Start,
    User,
    assert_nothing_left,
    ended,
    finish,
    run_folder,
    wait_for,
)

_ANSWERS = {
    "pause": "paused after step",
    "save": "saved the checkpoint after step",
    "evaluate": "held-out loss",
    "set": "train.keep_checkpoints is 20 from step",
    "trace": "recording step",
}


def until_phase(phase: str, run: RunDir) -> None:
    wait_for(lambda: phase_of(run) == phase, why=f"it is not {phase}", timeout_s=PATIENT_S)


class Terminals:
    """All controls at once, and their answers."""

    def __init__(self, typed: Typed, run: RunDir) -> None:
        self._typed, self._run = typed, run
        self._open: list[tuple[str, str, subprocess.Popen[str]]] = []

    def type_all(self, phase: str, controls: Iterable[str]) -> None:
        """Type them at once; return when the run's folder holds what each asks for."""
        asked = [(control, self._typed.begin(control)) for control in controls]
        self._open += [(phase, *one) for one in asked]

        def is_there(control: str, process: subprocess.Popen[str]) -> bool:
            name = "profile" if control == "trace" else control
            return process.poll() is not None or any(self._run.control.glob(f"{name}*"))

        for one in asked:
            wait_for(lambda one=one: is_there(*one), why=f"{one[0]} asks for nothing")  # type: ignore[misc]

    def typed(self, *, but: str = "") -> None:
        """Wait for the answer of each; all have done it."""
        left = [one for one in self._open if one[1] == but]
        for phase, control, process in self._open:
            if control != but:
                code, text = self._typed.end(process, phase, control)
                assert code == 0, text
                assert _ANSWERS[control] in text
        self._open = left


def withdrawn(typed: Typed, run: RunDir, phase: str) -> None:
    """Ask to pause and, before it does, to go on; both say what became of it."""
    pause = typed.begin("pause")
    wait_for((run.control / "pause").exists, why="no request")
    code, text = typed("resume", phase)
    assert (code, "was not paused yet, and will not be" in text) == (0, True), text
    code, text = typed.end(pause, phase, "pause")
    assert (code, "another command had it go on" in text) == (2, True), text


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_each_control_at_each_phase_of_one_run_and_its_losses_are_bitwise_the_same(
    user: User,
) -> None:
    undisturbed = undisturbed_run(user.airlock, user.environ)
    holds = Holds(user.folder, user.environ, *PHASES, "exporting")
    with holds.gate_taken(), ended(user.airlock(*WHOLE, env=holds.env)) as process:
        run = next_run(user.environ, undisturbed)
        typed = Typed(user.airlock, run)
        terminals = Terminals(typed, run)
        once = ("save", "evaluate", "set", "trace")
        for phase in ("preparing", "gate", "loading"):
            holds.until(phase, run)
            code, text = typed("resume", phase)
            assert (code, "is not paused: it is" in text) == (0, True), text
            withdrawn(typed, run, phase)
            terminals.type_all(phase, once)
            holds.go(phase)
        for phase in ("first step", "training", "evaluating", "saving"):
            holds.until(phase, run)
            until_phase("training", run)
            code, text = typed("resume", phase)
            assert (code, "is not paused: it is training" in text) == (0, True), text
            terminals.type_all(phase, ("pause", *once))
            holds.go(phase)
            terminals.typed(but="trace")
            until_phase("paused", run)
            if phase == "first step":
                code, text = typed("pause", "paused")
                assert (code, "is paused already, after step 2" in text) == (0, True), text
                terminals.type_all("paused", once)
                terminals.typed(but="trace")
                until_phase("paused", run)
            code, text = typed("resume", "paused")
            assert (code, "goes on after step" in text) == (0, True), text
            terminals.typed()
        holds.until("exporting", run)
        until_phase("finishing", run)
        for control in ("pause", *once):
            code, text = typed(control, "exporting")
            assert (code, "has trained all its steps" in text) == (2, True), text
        code, text = typed("resume", "exporting")
        assert (code, "is not paused: it is finishing" in text) == (0, True), text
        holds.go("exporting")
        code, _, err = finish(process, timeout_s=PATIENT_S)
    assert code == 0, err
    for control in ("pause", "resume", *once, "stop"):
        code, text = typed(control, "ended")
        assert (code, "is over: done" in text) == (2, True), text
    print(typed.table())  # noqa: T201 - shown with -s
    assert curve(run) == curve(undisturbed)
    assert len(curve(run)) == STEPS
    assert list(run.control.iterdir()) == []
    assert_nothing_left(run)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("phase", [*PHASES, "paused", "exporting"])
def test_a_stop_typed_twice_at_once_ends_the_run_in_each_phase(user: User, phase: str) -> None:
    stops_at(user.airlock, user.environ, user.folder, phase)


def stops_at(airlock: Start, environ: dict[str, str], tmp_path: Path, phase: str) -> None:
    """Stop a run in a phase, from two terminals; it saves if there is something to save."""
    holds = Holds(tmp_path, environ, phase)
    with ended(airlock(*WHOLE, env=holds.env)) as process:
        run = run_folder(environ)
        wait_for(run.status.exists, why="no status")
        typed = Typed(airlock, run)
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
        told = [typed.end(one, phase, f"stop {number}") for number, one in enumerate(stops)]
    print(typed.table(), f"exit code {code}", sep="\n")  # noqa: T201 - shown with -s
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


def test_a_stop_typed_twice_at_once_while_it_trains_saves(user: User) -> None:
    stops_at(user.airlock, user.environ, user.folder, "training")
