"""The plan of a run: requested beside preparation and start, and checked as they proceed.

Only a run that cannot fit is ended. Anything that keeps the plan from being made is reported in a
line, no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from launch.config.job import Job
from launch.config.request import RUN, Request
from launch.plan.fit import Fit
from launch.plan.instead import Instead, what_fits_instead
from launch.plan.plan import Plan, this_host
from launch.plan.planning import make_plan, plan_of_job, plan_text
from launch.plan.question import question_of
from launch.plan.show import recomputed_lines, show_plan, updates_lines, verdict_lines
from launch.plan.target import target_of_placement
from launch.plan.tracer import Tracer
from launch.plan.ways import Decided, Ways
from machine.processes.signals import Interrupted, Signals
from rundir.atomic import write_text
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import Prepared


class DoesNotFitError(UserError):
    """A run that does not fit, by its `plan`."""

    def __init__(self, plan: Plan, request: Request, alternatives: Sequence[Instead] = ()) -> None:
        lines = [line for line in verdict_lines(plan) if line.startswith(Fit.DOES_NOT_FIT)]
        force = Instead("try it all the same", f"{request.command(RUN, {})} --force")
        do = "\n  → ".join(
            f"{alternative.command}   # {alternative.what}"
            for alternative in [*alternatives, force]
        )
        super().__init__("\n  ".join(lines), do=do, code=ExitCode.DOES_NOT_FIT)
        self.plan = plan


class PlanOfRun:
    """The plan of one run that trains a profile; a script has none."""

    def __init__(
        self,
        request: Request,
        job: Job,
        folder: RunDir,
        console: Console,
        environ: Mapping[str, str],
        signals: Signals,
    ) -> None:
        self._request = request
        self._config, self._target = job.config, target_of_placement(job.placement)
        self._folder, self._console, self._environ = folder, console, environ
        self._signals, self._host = signals, this_host()  # before the run itself takes any memory
        self._prepared: Prepared | None = None
        self._tracer: Tracer | None = None
        self._plan: Plan | None = None
        self._is_settled = job.config.script is not None or job.config.scoring is not None

    def begin(self, prepared: Prepared | None = None) -> None:
        """Request the plan, and again when model and data are `prepared` if that was too early.

        Raises DoesNotFitError if the answer is known already, and it is no.
        """
        self._prepared = prepared
        if not self._is_settled and self._tracer is None:
            self._ask()
        self.look(has_trained=False)

    def _ask(self) -> None:
        try:
            questions = [
                question_of(config, self._target.device, self._model_folder)
                for config in self._ways.traced
            ]
            self._tracer = Tracer(questions, self._environ)
        except UserError as error:
            if self._prepared is not None:  # else the model may still be fetched
                self._say_none(error)

    @property
    def _ways(self) -> Ways:
        return Ways(self._config, self._target)

    @property
    def _model_folder(self) -> Path | None:
        return None if self._prepared is None else Path(self._prepared.model_path)

    def look(self, *, has_trained: bool) -> None:
        """Check whether there is an answer; then report and keep it.

        Raises DoesNotFitError if it is no, unless a step `has_trained`: then the run does fit.
        """
        if self._is_settled or self._tracer is None or not self._tracer.poll():
            return
        try:
            plan = self._ways.chosen(
                self._tracer.answers(),
                lambda config, footprint: make_plan(
                    config, self._target, footprint, self._host, self._model_folder
                ),
            )
        except (UserError, OSError) as error:
            self._say_none(error)
            return
        is_refused = plan.verdict is Fit.DOES_NOT_FIT and not (self._request.force or has_trained)
        if is_refused and not plan.is_hopeless:
            if self._prepared is None:
                self._say_early(plan)
                return
            if self._ask_with_own_length(self._prepared.train.longest):
                self.look(has_trained=has_trained)
                return
        self._is_settled, self._plan = True, plan
        self._keep(plan, None)
        if is_refused:
            raise DoesNotFitError(plan, self._request)
        lines = [*verdict_lines(plan), *updates_lines(plan), *recomputed_lines(plan)]
        self._console.out("\n".join(f"plan: {line}" for line in lines))

    def decided(self) -> Decided:
        """Return what is left to the plan; waits for it if that decides.

        Called when model and data are prepared. Raises DoesNotFitError, and Interrupted when a stop
        was requested.
        """
        ways = self._ways
        while ways.are_open and self._tracer is not None and not self._is_settled:
            with contextlib.suppress(UserError):  # `look` reports it
                self._tracer.wait(self._signals)
            self.look(has_trained=False)
        return ways.decided(self._plan)

    def _say_early(self, plan: Plan) -> None:
        """Report a plan that does not fit before the model is fetched, which may take long.

        Samples shorter than the limit may still make it fit.
        """
        most = plan.config.data.max_seq_length
        for line in verdict_lines(plan):
            self._console.out(f"plan: {line}, if samples have {most:,} tokens")
        self._console.out("plan: looked at again once the data are known")

    def _ask_with_own_length(self, longest: int) -> bool:
        """Request a new plan if rows are shorter than the limit; return whether they are."""
        data = self._config.data
        most = longest * (self._config.train.global_batch_size if data.packing else 1)
        if most >= data.max_seq_length:
            return False
        shorter = dataclasses.replace(data, max_seq_length=most)
        self._config = dataclasses.replace(self._config, data=shorter)
        self._ask()
        return True

    def explained(self, error: UserError) -> UserError:
        """Return `error`; extend a DoesNotFitError by what would fit, which takes a moment."""
        if not isinstance(error, DoesNotFitError):
            return error
        try:
            alternatives = what_fits_instead(
                error.plan, self._request, self._environ, self._signals
            )
        except (UserError, Interrupted):  # the error is known without it
            return error
        self._keep(error.plan, alternatives)
        return DoesNotFitError(error.plan, self._request, alternatives)

    def close(self) -> None:
        """Stop the tracer."""
        if self._tracer is not None:
            self._tracer.close()

    def _keep(self, plan: Plan, alternatives: list[Instead] | None) -> None:
        with contextlib.suppress(OSError):  # a full disk is no reason to end a run
            write_text(self._folder.plan, plan_text(plan, alternatives) + "\n")

    def _say_none(self, error: Exception) -> None:
        self._is_settled = True
        self._console.out(f"airlock: no plan: {error.args[0]}")


def show_plan_of(job: Job, console: Console, environ: Mapping[str, str]) -> ExitCode:
    """Show the plan of a run that is not started, from what is on this machine."""
    if job.config.script is not None:
        return ExitCode.DONE
    signals = Signals.listening()
    try:
        show_plan(console, plan_of_job(job, environ, signals))
    except Interrupted:
        return ExitCode.INTERRUPTED_UNSAVED
    except (UserError, OSError) as error:
        console.out(f"airlock: no plan: {error.args[0]}")
    return ExitCode.DONE
