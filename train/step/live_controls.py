"""Requests to a run that trains, which all ranks answer together between two steps.

Rank 0 reads them from control/ and tells the others in a collective that each step has anyway
(train/step/loop.py), as a sum of the bits below.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from ranks.group import Ranks
from rundir import control
from rundir.config import RunConfig
from rundir.config_file import change_setting
from rundir.control import ControlRequest
from rundir.paths import RunDir
from rundir.units import clock_text
from train.step.recorder import Recorder

if TYPE_CHECKING:
    from train.step.loop import Trainer

STOP, PAUSE, SAVE, EVALUATE, SET, PROFILE = (1 << place for place in range(6))
_ONCE = {"save": SAVE, "evaluate": EVALUATE, "set": SET, "profile": PROFILE}

_READ_EVERY_S = 0.25  # while paused: rank 0 reads control/
_MEET_EVERY_S = 2.0  # while paused: all ranks, so that none waits as long as a collective may
_MEET_SHARE = 0.25  # of launch.collective_timeout_s, if that is shorter


class Controls:
    """The requests to one run. `read` is a rank's own; all call `stepped` together."""

    def __init__(self, config: RunConfig, run: RunDir, ranks: Ranks) -> None:
        self._run, self._ranks = run, ranks
        self._meet_every_s = min(_MEET_EVERY_S, _MEET_SHARE * config.launch.collective_timeout_s)
        self._todo: dict[str, list[ControlRequest]] = {}  # on rank 0
        self._stuck: set[str] = set()  # files that could not be removed: answered once all the same
        self._recorder = Recorder(run, ranks)

    def read(self) -> int:
        """Return what is asked for, as bits, on rank 0; elsewhere 0.

        What is done once is taken out of the folder here, so that it is never done twice.
        """
        if not self._ranks.is_first:
            return 0
        requests = 0
        waiting = control.pending(self._run)
        names = {pending.name for pending in waiting}
        if "stop" in names:
            requests |= STOP
        if "resume" in names:
            for name in ("pause", "resume"):
                self._remove(name)
        elif "pause" in names:
            requests |= PAUSE
        for pending in waiting:
            bit = _ONCE.get(pending.request, 0)
            waits = bit == PROFILE and self._recorder.is_recording
            if not bit or waits or pending.name in self._stuck:
                continue
            if not self._remove(pending.name):
                self._stuck.add(pending.name)
            self._todo.setdefault(pending.request, []).append(pending)
        for request in self._todo:
            requests |= _ONCE[request]
        return requests

    def stepped(self, requests: int, training: Trainer) -> bool:
        """Do what all ranks have heard, in the step that has ended, is asked for.

        Return True if the run is to stop. While it is paused, this waits.
        """
        self._recorder.stepped()
        return requests != 0 and self._answer(requests, training)

    def end(self) -> None:
        """Write a trace that has begun: there are no more steps."""
        self._recorder.finish()

    def _answer(self, requests: int, training: Trainer) -> bool:
        paused_at: float | None = None
        while not requests & STOP:
            self._do_once(requests, training)
            if not requests & PAUSE:
                break
            if training.step >= training.total_steps:
                self._remove("pause")
                self._tell("pause", [], training, why="all steps are trained")
                break
            if paused_at is None:
                paused_at = time.monotonic()
                self._tell("pause", [], training, answer=f"paused after step {training.step}")
            requests = self._wait()
        if paused_at is not None:
            paused_s = time.monotonic() - paused_at
            training.progress.leave_out(paused_s)
            if not requests & STOP:
                answer = f"goes on after step {training.step}, paused for {clock_text(paused_s)}"
                self._tell("resume", [], training, answer=answer)
        return bool(requests & STOP)

    def _wait(self) -> int:
        """Wait until something is asked for, or for a while; return it as all ranks hear it."""
        requests, deadline = PAUSE, time.monotonic() + self._meet_every_s
        self._ranks.pulse.tick("paused")
        while self._ranks.is_first and requests == PAUSE and time.monotonic() < deadline:
            time.sleep(min(_READ_EVERY_S, self._meet_every_s))
            self._ranks.pulse.tick("paused")
            requests = self.read()
        (total,) = self._ranks.sum([requests if self._ranks.is_first else 0])
        return int(total)

    def _do_once(self, requests: int, training: Trainer) -> None:
        """Do what is done once, in an order in which a new setting already counts."""
        if requests & SET:
            self._change(training)
        if requests & SAVE:
            step, why = training.step, training.save_now()
            answer = f"saved the checkpoint after step {step}"
            self._tell("save", self._taken("save"), training, answer=answer, why=why)
        if requests & EVALUATE:
            loss = training.evaluate_now()
            why = "there are no held-out data to evaluate on" if loss is None else ""
            answer = "" if why else f"held-out loss {loss:.4f} after step {training.step}"
            self._tell("evaluate", self._taken("evaluate"), training, answer=answer, why=why)
        if requests & PROFILE:
            self._record(training)

    def _change(self, training: Trainer) -> None:
        for change in self._ranks.share(self._taken("set")):
            was = training.settings
            try:
                settings, key = control.changed(was, change.value)
            except ValueError as error:
                self._tell("set", [change], training, why=str(error))
                continue
            training.settings = settings
            value = getattr(settings, key)
            answer = f"train.{key} is {value} from step {training.step + 1} on, it was "
            answer += str(getattr(was, key)) + self._note(f"train.{key}", value, training.step)
            self._tell("set", [change], training, answer=answer)

    def _note(self, key: str, value: int, step: int) -> str:
        """Write the setting to config.toml, for a restart and --resume; return why not, or ""."""
        if not self._ranks.is_first:
            return ""
        try:
            change_setting(self._run.config, key, value, f"airlock set, after step {step}")
        except (OSError, ValueError) as error:
            return f"; not in config.toml: {error}"
        return ""

    def _record(self, training: Trainer) -> None:
        files: list[ControlRequest] = self._ranks.share(self._taken("profile"))
        left = training.total_steps - training.step
        numbers = [int(file.value) for file in files if file.value.isdecimal()]
        num_steps = min(max(numbers, default=1), control.MOST_TRACED_STEPS, left)
        if num_steps < 1:
            why = "all steps are trained" if left < 1 else "at least one step has to be recorded"
            self._tell("profile", files, training, why=why)
            return
        self._recorder.begin(training.step, num_steps)
        first, last = training.step + 1, training.step + num_steps
        which = f"step {first}" if num_steps == 1 else f"steps {first} to {last}"
        self._tell("profile", files, training, answer=f"recording {which}")

    def _taken(self, request: str) -> list[ControlRequest]:
        return self._todo.pop(request, [])

    def _tell(
        self,
        request: str,
        files: list[ControlRequest],
        training: Trainer,
        *,
        answer: str = "",
        why: str = "",
    ) -> None:
        self._ranks.mark(
            "control",
            request=request,
            ids=[file.id for file in files if file.id],
            step=training.step,
            done=not why,
            said=f"{request}: not done: {why}" if why else answer,
        )

    def _remove(self, name: str) -> bool:
        """Remove a file of control/ on rank 0; return whether it is gone."""
        if self._ranks.is_first:
            with contextlib.suppress(OSError):
                control.withdraw(self._run, name)
                return True
        return False
