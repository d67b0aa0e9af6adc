"""Requests to one rank: answered once each, between two steps, whatever the folder holds."""

from __future__ import annotations

import gzip
import json
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks.group import Alone
from rundir import control
from rundir.config import RunConfig, TrainConfig
from rundir.config_file import config_text, read_config
from rundir.events import Event, EventWriter, read_events
from rundir.paths import RunDir, create_run
from tests.running import wait_for
from train.step.live_controls import Controls
from train.step.recorder import Recorder


@dataclass
class Training:
    """A training that notes what is done with it."""

    step: int = 3
    total_steps: int = 10
    settings: TrainConfig = field(default_factory=TrainConfig)
    loss: float | None = 0.5
    full: str = ""
    done: list[str] = field(default_factory=list)
    left_out_s: float = 0.0

    @property
    def progress(self) -> Training:
        return self

    def save_now(self) -> str:
        self.done.append("save")
        return self.full

    def evaluate_now(self) -> float | None:
        self.done.append("evaluate")
        return self.loss

    def leave_out(self, seconds: float) -> None:
        self.left_out_s += seconds


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path))
    run = create_run("tiny")
    config = RunConfig(profile="tiny", architecture={})
    run.config.write_text(config_text(config, {"train.seed": "default"}))
    return run


@pytest.fixture
def controls(run: RunDir) -> Controls:
    config = RunConfig(profile="tiny", architecture={})
    events = EventWriter(run.event_file("rank0"), rank=0)
    return Controls(config, run, Alone(torch.device("cpu"), events=events))


def answers(run: RunDir, name: str = "control") -> list[Event]:
    return [event for event in read_events(run.events) if event["name"] == name]


def requests(run: RunDir) -> list[str]:
    return [event["request"] for event in answers(run)]


def take(controls: Controls, training: Any) -> bool:
    return controls.stepped(controls.read(), training)


def test_nothing_is_done_unless_it_is_asked_for(run: RunDir, controls: Controls) -> None:
    (run.control / "trace").touch()  # the watchdog's
    (run.control / "something else").touch()
    (run.control / "save.d").mkdir()
    training = Training()
    assert controls.read() == 0
    assert take(controls, training) is False
    assert (training.done, answers(run)) == ([], [])


def test_requests_of_several_at_once_are_answered_by_one_save(
    run: RunDir, controls: Controls
) -> None:
    ids = {control.ask_once(run, "save").id for _ in range(3)}
    control.ask(run, "save")
    training = Training()
    for _ in range(3):
        assert take(controls, training) is False
    (answer,) = answers(run)
    assert (set(answer["ids"]), answer["done"], answer["step"]) == (ids, True, 3)
    assert training.done == ["save"]
    assert not list(run.control.iterdir())


def test_a_request_that_cannot_be_removed_is_answered_once_all_the_same(
    run: RunDir, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> bool:
        raise PermissionError

    monkeypatch.setattr(control, "withdraw", refused)
    control.ask(run, "save")
    training = Training()
    for _ in range(3):
        take(controls, training)
    assert training.done == ["save"]


def test_what_cannot_be_done_is_told(run: RunDir, controls: Controls) -> None:
    control.ask(run, "save")
    control.ask(run, "evaluate")
    control.ask_once(run, "set", "train.learning_rate=1")
    control.ask_once(run, "profile", "0")
    assert take(controls, Training(full="No space left on device", loss=None)) is False
    told = {event["request"]: event["said"] for event in answers(run)}
    assert not any(event["done"] for event in answers(run))
    assert "No space left on device" in told["save"]
    assert "no held-out data" in told["evaluate"]
    assert "train.learning_rate cannot change" in told["set"]
    assert "at least one step" in told["profile"]


def test_a_setting_changes_for_the_run_and_for_what_goes_on_from_it(
    run: RunDir, controls: Controls
) -> None:
    control.ask_once(run, "set", "train.log_every_steps=5")
    control.ask_once(run, "set", " train.eval_every_steps = 2 ")
    training = Training()
    take(controls, training)
    expected = replace(TrainConfig(), log_every_steps=5, eval_every_steps=2)
    assert training.settings == expected
    assert read_config(run.config).train == expected
    assert "log_every_steps = 5  # airlock set, after step 3" in run.config.read_text()
    run.config.unlink()  # it still changes where that cannot be noted
    control.ask_once(run, "set", "train.log_every_steps=7")
    take(controls, training)
    assert training.settings.log_every_steps == 7
    assert "not in config.toml" in answers(run)[-1]["said"]


@pytest.mark.parametrize("how", ["withdrawn", "resume", "stop"])
def test_a_pause_lasts_until_it_is_ended_and_is_no_part_of_the_time(
    run: RunDir, controls: Controls, how: Any
) -> None:
    def request() -> None:
        wait_for(lambda: "pause" in requests(run), why="not paused")
        control.ask(run, "save")
        wait_for(lambda: "save" in requests(run), why="not saved")
        if how == "withdrawn":
            control.withdraw(run, "pause")
        else:
            control.ask(run, how)

    control.ask(run, "pause")
    training = Training()
    control.ask(run, "evaluate")
    person = threading.Thread(target=request)
    person.start()
    begun = time.monotonic()
    assert take(controls, training) is (how == "stop")
    person.join()
    assert time.monotonic() - begun >= training.left_out_s > 0.25  # two looks at the folder
    assert training.done == ["evaluate", "save"]
    ends = [] if how == "stop" else ["resume"]
    assert requests(run) == ["evaluate", "pause", "save", *ends]
    assert {path.name for path in run.control.iterdir()} <= {"stop", "pause"}


def test_after_the_last_step_there_is_no_pause(run: RunDir, controls: Controls) -> None:
    control.ask(run, "pause")
    assert take(controls, Training(step=10)) is False
    (answer,) = answers(run)
    assert (answer["done"], "all steps are trained" in answer["said"]) == (False, True)
    assert not list(run.control.iterdir())


def test_traces_asked_for_at_once_come_one_after_the_other(run: RunDir, controls: Controls) -> None:
    control.ask_once(run, "profile", "2")
    training: Any = Training(step=3)
    take(controls, training)
    control.ask_once(run, "profile", "100")  # more than there are
    for step in range(4, 11):
        asked = controls.read()
        torch.ones(8).matmul(torch.ones(8))
        training.step = step
        controls.stepped(asked, training)
    controls.end()
    told = [(event["step"], event["num_steps"]) for event in answers(run, "trace")]
    assert told == [(3, 2), (6, 4)]
    for event in answers(run, "trace"):
        with gzip.open(run.path / event["file"]) as file:
            names = {one.get("name") for one in json.load(file)["traceEvents"]}
        assert f"airlock step {event['step'] + 1}" in names
        assert "aten::" in event["table"]


def test_a_trace_that_cannot_be_written_is_told_and_leaves_nothing(run: RunDir) -> None:
    events = EventWriter(run.event_file("rank0"))
    recorder = Recorder(run, Alone(torch.device("cpu"), events=events))
    run.traces.write_text("a file where the folder has to be")
    recorder.begin(0, 1)
    recorder.stepped()
    (event,) = answers(run, "trace")
    assert event["file"] is None
    assert "FileExistsError" in event["why"]
    recorder.begin(1, 1)  # and the next one can still be asked for
    assert recorder.is_recording
    recorder.finish()
