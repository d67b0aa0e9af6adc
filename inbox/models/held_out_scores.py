"""The scores of a model on held-out sets, by `airlock evaluate` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from inbox.models.held_out import HeldOutSet
from machine.processes.parent import die_with_parent
from rundir.errors import ExitCode

_INTERRUPTED = (ExitCode.INTERRUPTED_SAVED, ExitCode.INTERRUPTED_UNSAVED)
_LOOK_S = 1.0
_LINES = 3  # of what a failed evaluation printed last


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A model on one set: the mean loss of a label token, and exact matches if there are answers.

    `loss` is None if it is no number.
    """

    loss: float | None
    exact_match: float | None = None


class ScoringFailedError(Exception):
    """An evaluation that has ended without scores; the text says how."""


class StoppedError(Exception):
    """Work that was asked to stop: nothing is decided, and it is to be done again."""


class Scorer:
    """Runs `airlock evaluate`, and asks it to stop once `is_stopped` says so."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], is_stopped: Callable[[], bool]
    ) -> None:
        self._command, self._env, self._is_stopped = list(command), dict(env), is_stopped

    def scores(self, model: str, sets: Sequence[HeldOutSet]) -> dict[str, Score]:
        """Return the score of `model`, a folder or a model of the Hub, on each set by its name.

        Raises ScoringFailedError and StoppedError.
        """
        scores_: dict[str, Score] = {}
        for (settings, options), alike in groupby(sorted(sets, key=_sampling), _sampling):
            named = [f"{held_out.name}={held_out.path}" for held_out in alike]
            words = ["evaluate", model, *named, "--json", *options]
            words += [word for setting in settings for word in ("--set", setting)]
            for name, held_out in self._run(words)["sets"].items():
                loss = held_out["loss"]
                scores_[name] = Score(loss=loss, exact_match=held_out["exact_match"])
        return scores_

    def scores_if_any(self, model: str, sets: Sequence[HeldOutSet]) -> dict[str, Score]:
        """Return what `scores` does, or nothing: for figures that decide nothing."""
        try:
            return self.scores(model, sets)
        except ScoringFailedError:
            return {}

    def _run(self, words: list[str]) -> dict[str, Any]:
        process = subprocess.Popen(
            [*self._command, *words],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # Asked to stop when the inbox is killed: nobody else would end it.
            preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),  # noqa: PLW1509 - a prctl
        )
        out, err = self._end_of(process)
        code = process.returncode
        if code in (*_INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
            raise StoppedError(f"./airlock evaluate ended with {code}")
        try:
            result: dict[str, Any] = json.loads(out.strip().splitlines()[-1]) if not code else {}
        except (ValueError, IndexError):
            result = {}
        if "sets" not in result:
            last = " / ".join(line.strip() for line in err.strip().splitlines()[-_LINES:])
            raise ScoringFailedError(f"./airlock evaluate ended with {code}: {last or 'silent'}")
        return result

    def _end_of(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        """Return what the process has printed, once it has ended."""
        is_asked = False
        while True:
            try:
                return process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                if not is_asked and self._is_stopped():
                    process.terminate()
                    is_asked = True


def _sampling(held_out: HeldOutSet) -> tuple[list[str], list[str]]:
    """Return how a set is scored: those that are alike are scored in one evaluation."""
    return held_out.settings, held_out.options
