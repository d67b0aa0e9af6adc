"""In every phase of a run, a control does what it says, or says why not and what to type."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest
from rich.console import Console

from launch.commands import controls
from launch.commands.cli import airlock
from launch.live import live_run
from launch.live.live_run import LiveRun
from rundir import control, owner
from rundir.config import RunConfig, ScriptConfig
from rundir.config_file import config_text
from rundir.events import EventWriter
from rundir.paths import RunDir, create_run
from rundir.pulse import Pulse
from rundir.status import RankStatus, Status, write_status

COMMANDS = (
    ["pause", "RUN"],
    ["pause", "--release", "RUN"],
    ["resume", "RUN"],
    ["save", "RUN"],
    ["evaluate", "--live", "RUN"],
    ["set", "RUN", "train.log_every_steps=2"],
    ["trace", "RUN", "--steps", "2"],
)
ASKS = [words for words in COMMANDS if "--release" not in words and words[0] != "resume"]
SAVE = ["save", "RUN"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDir]:
    """Yield a run of two ranks whose owner is this process; commands look at it more often."""
    monkeypatch.setattr(live_run, "_POLL_S", 0.02)
    monkeypatch.setattr(live_run, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(live_run, "_GRACE_S", 0.3)
    monkeypatch.setattr(controls, "_LATE_S", 0.3)
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path))
    run = create_run("tiny")
    run.config.write_text(config_text(RunConfig(profile="tiny", architecture={}), {}))
    owner.take(run, "./start.sh tiny")
    in_phase(run, "training")
    yield run
    if owner._held:
        die()


def die() -> None:
    os.close(owner._held.pop())


def in_phase(run: RunDir, phase: str, attempt: int = 0) -> None:
    ranks = [RankStatus(rank=0), RankStatus(rank=1)]
    about: dict[str, Any] = {
        "run_id": run.run_id,
        "profile": "tiny",
        "phase": phase,
        "attempt": attempt,
    }
    write_status(run, Status(step=7, ranks=ranks, **about))


def typed(run: RunDir, words: list[str], timeout_s: float = 1) -> tuple[int, str]:
    args = [run.run_id if word == "RUN" else word for word in words]
    found = click.testing.CliRunner().invoke(airlock, [*args, "--timeout-s", str(timeout_s)])
    return found.exit_code, found.output


class Trained:
    """What the ranks would do: answer each request as soon as it is made."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._is_over = run, threading.Event()
        self._writers = [EventWriter(run.event_file(f"rank{rank}"), rank=rank) for rank in (0, 1)]
        self.answered: list[control.ControlRequest] = []
        self._thread = threading.Thread(target=self._answer)

    def __enter__(self) -> Trained:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _answer(self) -> None:
        while not self._is_over.wait(0.01):
            for asked in control.pending(self._run):
                if asked in self.answered:
                    continue
                self.answered.append(asked)
                if asked.request != "pause":
                    control.withdraw(self._run, asked.name)
                self._tell(asked)

    def _tell(self, one: control.ControlRequest) -> None:
        fields: dict[str, Any] = {"request": one.request, "ids": [one.id] if one.id else []}
        told = f"did {one.request} {one.value}".strip()
        self._writers[0].emit("mark", "control", step=7, done=True, said=told, **fields)
        if one.request == "profile":
            for rank, writer in enumerate(self._writers):
                file = f"traces/rank{rank}.json.gz" if rank == 0 else None
                why = None if rank == 0 else "the disk is full"
                table = "aten::mm" if rank == 0 else None
                writer.emit("mark", "trace", step=7, num_steps=2, file=file, table=table, why=why)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_is_asked_of_a_run_that_is_over_or_dead_or_of_a_script(
    run: RunDir, words: list[str]
) -> None:
    def refused(*parts: str) -> None:
        code, out = typed(run, words)
        assert code == 2
        assert [part for part in parts if part not in out] == []
        assert not list(run.control.iterdir())

    for phase in ("done", "failed", "interrupted"):
        in_phase(run, phase)
        refused(f"is over: {phase}")
    in_phase(run, "training")
    own = run.config.read_text()
    script = RunConfig(profile="script", script=ScriptConfig(path="train.py"), architecture={})
    run.config.write_text(config_text(script, {}))
    refused("is of a script", f"stop {run.run_id}")
    run.config.write_text(own)
    die()
    refused("is dead", f"doctor {run.run_id}")


@pytest.mark.parametrize("words", ASKS, ids=" ".join)
@pytest.mark.parametrize(("phase", "why"), [("finishing", "all its steps"), ("stopping", "ends")])
def test_a_run_without_further_steps_is_asked_for_nothing(
    run: RunDir, words: list[str], phase: str, why: str
) -> None:
    in_phase(run, phase)
    code, out = typed(run, words)
    assert code == 2
    assert why in out
    assert not list(run.control.iterdir())


@pytest.mark.parametrize(
    ("words", "phase", "pulse", "said"),
    [
        *((words, "starting", "", "the ranks are starting") for words in ASKS),
        (SAVE, "preparing", "", "model and data are being prepared"),
        (SAVE, "training", "eval", "it evaluates"),
        (SAVE, "training", "checkpoint", "it saves a checkpoint"),
    ],
)
def test_what_is_asked_before_the_next_step_stands_and_says_what_it_waits_for(
    run: RunDir, words: list[str], phase: str, pulse: str, said: str
) -> None:
    in_phase(run, phase)
    if pulse:
        Pulse(run.pulse(0)).tick(pulse)
    code, out = typed(run, words)
    assert code == 10
    assert f"waits for its next step: {said}" in out
    assert "has not answered within 1 s" in out
    assert len(list(run.control.iterdir())) == 1


@pytest.mark.parametrize("words", ASKS, ids=" ".join)
def test_an_answer_is_printed(run: RunDir, words: list[str]) -> None:
    request = {"trace": "profile"}.get(words[0], words[0])
    with Trained(run):
        code, out = typed(run, words, timeout_s=30)
    assert code == 0, out
    assert f"did {request}" in out
    if words[0] == "trace":  # a rank without one is told beside those that have one
        assert "traces/rank0.json.gz" in out
        assert "rank 1 has no trace: the disk is full" in out
        assert "aten::mm" in out


def test_of_two_commands_at_once_each_gets_its_own_answer(run: RunDir) -> None:
    outs = [io.StringIO() for _ in range(4)]

    def change(number: int) -> None:
        console = Console(file=outs[number])
        settings = [f"train.log_every_steps={number + 1}"]
        controls.change(LiveRun(run.run_id, console, timeout_s=30), settings)

    with Trained(run) as trained:
        threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(trained.answered) == 4
    for number, out in enumerate(outs):
        assert out.getvalue().count("did set") == 1
        assert f"log_every_steps={number + 1}" in out.getvalue()


def test_a_second_pause_and_a_second_resume_change_nothing(run: RunDir) -> None:
    in_phase(run, "paused")
    control.ask(run, "pause")
    code, out = typed(run, ["pause", "RUN"], timeout_s=30)
    assert (code, control.is_asked(run, "pause")) == (0, True)
    assert "is paused already, after step 7" in out
    in_phase(run, "training")
    control.withdraw(run, "pause")
    code, out = typed(run, ["resume", "RUN"])
    assert (code, control.is_asked(run, "pause")) == (0, False)
    assert "is not paused: it is training" in out


def test_a_pause_can_be_withdrawn_before_it_has_begun(run: RunDir) -> None:
    in_phase(run, "preparing")
    control.ask(run, "pause")
    code, out = typed(run, ["resume", "RUN"])
    assert code == 0
    assert "was not paused yet" in out
    assert not control.is_asked(run, "pause")


def later(what: Callable[[], object], after_s: float = 0.2) -> None:
    threading.Timer(after_s, what).start()


@pytest.mark.parametrize(
    ("words", "phase", "is_asked", "phase_then", "code", "said"),
    [  # the answer to the other command was there before this one listened
        ("pause", "training", True, "paused", 0, "is paused already, after step 7"),
        ("pause", "training", False, "training", 2, "another command had it go on meanwhile"),
        ("resume", "paused", False, "training", 0, "is not paused any more: it is training"),
        ("resume", "paused", True, "paused", 0, "another command asked for that meanwhile"),
    ],
)
def test_what_another_command_was_answered_meanwhile_is_not_waited_for(
    run: RunDir, words: str, phase: str, phase_then: str, code: int, said: str, *, is_asked: bool
) -> None:
    in_phase(run, phase)

    def other() -> None:
        if is_asked:
            control.ask(run, "pause")
        else:
            control.withdraw(run, "pause")
        in_phase(run, phase_then)

    later(other)
    ended, out = typed(run, [words, "RUN"], timeout_s=60)
    assert ended == code, out
    assert said in out
    assert words == "resume" or "waits for its next step" not in out


@pytest.mark.parametrize(
    "words", [one for one in ASKS if one[0] != "pause"], ids=lambda words: words[0]
)
def test_what_was_asked_of_ranks_that_were_started_again_has_to_be_asked_again(
    run: RunDir, words: list[str]
) -> None:
    def restart() -> None:
        for one in control.pending(run):
            control.withdraw(run, one.name)
        in_phase(run, "starting", attempt=1)

    later(restart)
    code, out = typed(run, words, timeout_s=60)
    assert code == 10
    assert "were started again before they had answered" in out
    assert f"airlock {' '.join(words)}".replace("RUN", run.run_id) in out


def test_a_run_that_dies_while_it_is_asked_is_told_of_and_not_waited_for(run: RunDir) -> None:
    later(die)
    begun = time.monotonic()
    code, out = typed(run, ["save", "RUN"], timeout_s=300)
    assert code == 2
    assert "is dead" in out
    assert not list(run.control.iterdir())  # nobody is asked any more
    assert time.monotonic() - begun < 200


@pytest.mark.parametrize(
    "setting", ["train.learning_rate=1", "log_every_steps=1", "train.log_every_steps=0", "x"]
)
def test_a_setting_that_cannot_change_is_refused_with_those_that_can(
    run: RunDir, setting: str
) -> None:
    code, out = typed(run, ["set", "RUN", setting])
    assert code == 2
    assert "train.log_every_steps" in out
    assert not list(run.control.iterdir())


def test_what_has_not_been_saved_yet_cannot_be_released(run: RunDir) -> None:
    in_phase(run, "starting")
    code, out = typed(run, ["pause", "--release", "RUN"])
    assert code == 2
    assert "nothing to save yet: it is starting" in out


def test_a_folder_that_cannot_be_written_is_told(run: RunDir) -> None:
    run.control.rmdir()
    for words in (["pause", "RUN"], ["save", "RUN"]):
        code, out = typed(run, words)
        assert code == 2
        assert "cannot be written" in out
