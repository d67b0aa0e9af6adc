"""The tracer, train/trace/estimate.py, in a child: it needs torch, which this process lacks.

Its answers are cached, a file each in the cache folder, named after the question. Nothing about the
cache fails: what cannot be read is asked again, what cannot be written is not kept.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.plan.question import Question
from machine.processes import children
from machine.processes.children import python_path
from machine.processes.signals import Interrupted, Signals
from rundir.atomic import new_scratch
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.footprint import Footprint, read_footprints, write_footprints
from rundir.paths import cache_folder

TIMEOUT_S = 180.0  # imports from a slow network file system alone have taken 80 s
_POLL_S = 0.02
_NUM_LAST_LINES = 4


def kept_answer(question: Question) -> Footprint | None:
    """Return the cached answer to this question, or None."""
    try:
        (footprint,) = read_footprints(_file(question))
    except (OSError, ValueError, TypeError):  # none yet, truncated, or of another version
        return None
    return footprint if _is_sound(footprint) else None


def keep(question: Question, footprint: Footprint) -> None:
    """Cache an answer; two processes that keep the same one write the same."""
    with contextlib.suppress(OSError):
        file = _file(question)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_footprints(file, [footprint])


def _file(question: Question) -> Path:
    return cache_folder() / "plans" / f"{question.key}.json"


def _is_sound(footprint: Footprint) -> bool:
    """Return whether the parts are integers that add up to the peak, as the contract says."""
    parts = (
        footprint.weights_bytes,
        footprint.gradients_bytes,
        footprint.optimizer_bytes,
        footprint.ddp_bytes,
        footprint.activations_bytes,
        footprint.logits_bytes,
    )
    numbers = (*parts, footprint.num_parameters, footprint.num_trainable)
    return all(type(number) is int for number in numbers) and sum(parts) == footprint.peak_bytes


class Tracer:
    """One call of the tracer, for those of the questions that have no cached answer.

    Call `poll` until it returns True, then `answers`; call `close` whatever happens.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        environ: Mapping[str, str],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Start the child if there is anything to ask. Raises UserError when that fails."""
        self._questions = questions
        by_key = {question.key: question for question in questions}
        answers = ((key, kept_answer(question)) for key, question in by_key.items())
        self._kept = {key: answer for key, answer in answers if answer is not None}
        self._open = [question for key, question in by_key.items() if key not in self._kept]
        self._folder: Path | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._timeout_s = timeout_s
        self._error: UserError | None = None
        if self._open:
            try:
                self._start(environ)
            except OSError as error:  # no room for a few kB, or no process to be had
                self.close()
                raise _failed(str(error)) from error

    def _start(self, environ: Mapping[str, str]) -> None:
        self._folder = new_scratch("plan")
        files = [self._folder / f"{i}.toml" for i in range(len(self._open))]
        for file, question in zip(files, self._open, strict=True):
            file.write_text(config_text(question.config, {}), encoding="utf-8")
        self._until = time.monotonic() + self._timeout_s
        device = self._open[0].device
        with (self._folder / "output").open("wb") as output:
            self._child = children.start(
                "train.trace",
                self._folder / "out.json",
                *files,
                "--device",
                device,
                env=_environment(environ),
                output=output,
            )

    def poll(self) -> bool:
        """Return whether all answers are known, or will not be."""
        if self._child is None:
            return True
        if self._child.poll() is None:
            if time.monotonic() < self._until:
                return False
            self._error = _failed(f"it was not done after {self._timeout_s:.0f} s")
        elif self._child.returncode:
            assert self._folder is not None
            self._error = _failed(_last_lines(self._folder / "output", self._child.returncode))
        self._take()
        self.close()
        return True

    def _take(self) -> None:
        """Take the answers that there are: all, unless the child did not come to its end."""
        assert self._folder is not None
        try:
            footprints = read_footprints(self._folder / "out.json")
        except (OSError, ValueError, TypeError) as error:
            self._error = self._error or _failed(str(error))
            return
        for question, footprint in zip(self._open, footprints, strict=False):
            self._kept[question.key] = footprint
            keep(question, footprint)

    def answers(self) -> list[Footprint]:
        """Return the answers, in order of the questions. Raises UserError if there are none."""
        if self._error is not None:
            raise self._error
        return [self._kept[question.key] for question in self._questions]

    def some_answers(self) -> list[Footprint | None]:
        """Return the answers, in order of the questions, and None for each that is not known.

        Raises UserError if none is.
        """
        if self._error is not None and not self._kept:
            raise self._error
        return [self._kept.get(question.key) for question in self._questions]

    def wait(self, signals: Signals) -> list[Footprint]:
        """Wait for the answers and return them.

        Raises Interrupted when a stop was requested, and UserError like `answers`.
        """
        self.wait_for_some(signals)
        return self.answers()

    def wait_for_some(self, signals: Signals) -> list[Footprint | None]:
        """Wait, and return `some_answers`. Raises Interrupted when a stop was requested."""
        try:
            while not self.poll():
                if signals.stop_asked:
                    raise Interrupted
                time.sleep(_POLL_S)
        finally:
            self.close()
        return self.some_answers()

    def close(self) -> None:
        """End the child if it is still running, and remove its files."""
        if self._child is not None:
            children.end(self._child)
            self._child = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the tracer: it reads local files only, and must not touch GPUs."""
    return dict(environ) | {
        "PYTHONPATH": python_path(environ),
        "PYTHONSAFEPATH": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "-1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _last_lines(output: Path, code: int) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    messages = [line.removeprefix("airlock: ") for line in lines[-_NUM_LAST_LINES:]]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    if len(messages) > 1 and messages[-1].startswith(
        "  → "
    ):  # the tracer itself has said what is wrong
        return "\n".join(messages[-2:])
    return "\n  ".join([f"the tracer ended with {how}", *messages])


def _failed(why: str) -> UserError:
    """Return the error for a failed trace; whether it matters is up to the caller."""
    what, _, do = why.partition("\n  → ")
    return UserError(
        f"the memory of this configuration could not be predicted: {what}",
        do=do or "./start.sh … goes on without a plan",
        code=ExitCode.PREFLIGHT,
    )
