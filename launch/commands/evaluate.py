"""`./airlock evaluate`: a model on named sets, by ranks that start as for a training."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from launch.commands.controls import TIMEOUT, ask_once
from launch.commands.unknown_words import AnsweringCommand
from launch.config.job import Job
from launch.config.options import options
from launch.config.request import Request
from launch.config.scoring import PROFILE, named_sets, scoring_config
from launch.files.data_file import check_data
from launch.files.model_folder import check_model
from launch.live.live_run import LiveRun
from launch.run.launched import carry_out
from launch.run.supervise.report import report
from launch.start.gate.folder import check_gate
from machine.gpus.devices import installed_gpus, place, visible_gpus
from machine.processes.output import Output, end_with
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, shown
from state.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What was typed."""

    model: str
    data: Sequence[str]
    settings: Sequence[str] = ()
    num_gpus: int | None = None
    max_samples: int = 0
    examples: str | None = None
    no_generate: bool = False
    as_json: bool = False


@click.command(cls=AnsweringCommand)
@click.argument("model", required=False, metavar="[RUN|FOLDER|OWNER/NAME]")
@click.argument("data", nargs=-1, metavar="[NAME=]DATA...")
@click.option("--live", metavar="RUN", help="A run that trains evaluates after its next step.")
@click.option("--num-gpus", type=int, help="Ranks, each on a device of its own; 1 by default.")
@options("set", "json")
@click.option(
    "--max-samples", type=click.IntRange(min=0), default=0, help="Rows to take of each set; 0: all."
)
@click.option("--examples", metavar="FILE", help="Write each example to this JSONL file.")
@TIMEOUT
@click.option(
    "--no-generate", is_flag=True, help="Leave out answers and exact match: the loss alone."
)
def evaluate(
    model: str | None, data: tuple[str, ...], live: str | None, *, timeout_s: float, **options: Any
) -> None:
    """Measure a model's loss, perplexity and exact matches on each DATA, without training.

    The model of a run (exported, or its best checkpoint), of a folder (also a checkpoint, or
    adapters), or of the Hub. DATA is a file, a folder or hf:OWNER/NAME. On one device unless
    --num-gpus says more. With --live, on the held-out data of the run, which then goes on.
    """

    def start(console: Console, output: Output) -> ExitCode:
        if live is not None:
            if model or data:
                raise UserError(
                    "--live takes the run's own held-out data",
                    do=f"./airlock evaluate --live {live}",
                )
            ask_once(LiveRun(live, console, timeout_s), "evaluate")
            return ExitCode.DONE
        if model is None or not data:
            raise UserError(
                "a model and data are needed",
                do=f"./airlock evaluate {model or 'RUN'} [NAME=]DATA..., or --live RUN",
            )
        question = _Question(model=model, data=data, **options)
        return _evaluate(question, console, output, os.environ)

    end_with(start)


def _evaluate(
    question: _Question, console: Console, output: Output, environ: Mapping[str, str]
) -> ExitCode:
    """Evaluate, and print a table or one JSON object. Raises UserError for what users can fix."""
    progress = Console(stderr=True, highlight=False) if question.as_json else console
    job = _job(question, environ)
    _check_writable(question.examples)
    signals = Signals.listening()
    output.on_reader_gone = signals.ask_to_stop
    request = Request(profile=PROFILE, num_gpus=question.num_gpus, settings=question.settings)
    with _aside() if question.as_json else nullcontext():
        run, state, code = carry_out(request, job, progress, signals, environ)
    if code is not ExitCode.DONE:
        if code in (ExitCode.INTERRUPTED_SAVED, ExitCode.INTERRUPTED_UNSAVED):
            progress.out(f"\ninterrupted; nothing was measured: {shown(run.path)}")
            return ExitCode.INTERRUPTED_UNSAVED
        report(progress, run, state, code)
        return code
    result = _results(question, job, run, state)
    if question.examples is not None:
        _copy(run.path / "examples.jsonl", Path(question.examples))
    if question.as_json:
        console.out(json.dumps(result))
    else:
        console.out("\n".join(_lines(result)))
    return code


@contextmanager
def _aside() -> Iterator[None]:
    """Send what child processes print to standard error: --json leaves one object elsewhere."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _job(question: _Question, environ: Mapping[str, str]) -> Job:
    config, sources = scoring_config(question.model, question.settings, environ)
    sets = named_sets(question.data, config.data.columns, question.max_samples)
    assert config.scoring is not None
    scoring = replace(
        config.scoring, generate=not question.no_generate, per_example=question.examples is not None
    )
    train = replace(config.train, eval_generate=scoring.generate)
    config = replace(config, evaluation=sets, scoring=scoring, train=train)
    check_model(config)
    for held_out in sets.values():
        check_data(replace(config, data=replace(config.data, path=held_out.path)))
    check_gate()
    number = 1 if question.num_gpus is None else question.num_gpus
    source = "one, by default" if question.num_gpus is None else "--num-gpus"
    visible = visible_gpus(installed_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    placement = place(config, (number, source), visible)
    config = replace(config, launch=replace(config.launch, num_ranks=placement.num_ranks))
    return Job(
        config=config, sources=sources, placement=placement, resume_from=None, profile=PROFILE
    )


def _check_writable(examples: str | None) -> None:
    """Raise UserError if the file of examples cannot be written, before anything is computed."""
    if examples is None:
        return
    try:
        with Path(examples).open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UserError(
            f"--examples {examples}: {error.strerror}", do="--examples examples.jsonl"
        ) from error


def _copy(made: Path, to: Path) -> None:
    try:
        shutil.copyfile(made, to)
    except OSError as error:
        raise UserError(
            f"--examples {to}: {error.strerror}", do=f"cp {shown(made)} ELSEWHERE"
        ) from error


def _results(question: _Question, job: Job, run: RunDir, state: RunState) -> dict[str, Any]:
    """Return all results, as they are printed with --json."""
    return {
        "model": question.model,
        "num_ranks": job.placement.num_ranks,
        "device": job.placement.device,
        "sets": {name: _result(job.config, name, last) for name, (_, last) in state.sets.items()},
        "examples": question.examples,
        "run": str(run.path),
    }


def _result(config: RunConfig, name: str, event: Mapping[str, Any]) -> dict[str, Any]:
    loss = event["loss"]  # text if it is no number
    is_number = isinstance(loss, float | int)
    return {
        "path": config.evaluation[name].path,
        "loss": loss if is_number else None,
        "perplexity": math.exp(min(loss, 700.0)) if is_number else None,
        "exact_match": event["exact_match"],
        "num_samples": event["num_samples"],
        "num_label_tokens": event["num_labels"],
    }


_TITLES = (
    f"  {'set':<20} {'loss':>10} {'perplexity':>12} {'exact match':>12} {'samples':>9} "
    f"{'tokens':>10}"
)


def _lines(result: Mapping[str, Any]) -> list[str]:
    lines = [
        f"\n{result['model']}",
        _TITLES,
    ]
    for name, scores in result["sets"].items():
        loss = "nan" if scores["loss"] is None else f"{scores['loss']:.6f}"
        perplexity = "-" if scores["perplexity"] is None else f"{scores['perplexity']:,.4f}"
        match_ = "-" if scores["exact_match"] is None else f"{scores['exact_match']:.1%}"
        lines.append(
            f"  {name:<20} {loss:>10} {perplexity:>12} {match_:>12} {scores['num_samples']:>9,} "
            f"{scores['num_label_tokens']:>10,}"
        )
    if result["examples"]:
        lines.append(f"  each example: {result['examples']}")
    return lines
