"""Preparation without training: `--prepare-only`, and `./airlock data`, which shows the data."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from launch.commands.unknown_words import AnsweringCommand
from launch.config.job import resolve_job
from launch.config.options import joined, options
from launch.config.request import RUN, Request
from launch.files.data_file import NoDataError, check_data
from launch.files.model_folder import check_model
from launch.files.preparation import have_data_of_hub, have_model, have_tokenizer
from machine.processes import children
from machine.processes.output import with_console
from machine.processes.signals import Signals
from machine.typed import again
from rundir.atomic import scratch
from rundir.config import RunConfig
from rundir.config_file import config_text
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir, cache_folder

_NUM_KEPT = 10


def prepare_only(request: Request, console: Console, environ: Mapping[str, str]) -> ExitCode:
    """Fetch or make the model and prepare the data, all into caches. Raises UserError."""
    config = _resolved(request, environ)
    check_data(config)
    check_model(config)
    env, signals = dict(environ), Signals.listening()
    with _kept_folder(config) as run:
        model = have_model(config, run, env, signals)
        have_data_of_hub(config, run, env, signals)
        what = "the data could not be prepared"
        children.run_well(what, "train.prepare", run.path, model, env=env, signals=signals)
    lines = [
        f"ready: the model in {model}",
        f"       the data in {cache_folder() / 'data'}",
        "on any machine that can read both, this starts at once and offline:",
        f"       HF_HUB_OFFLINE=1 {request.command(RUN, {})}",
    ]
    console.out("\n".join(lines))
    return ExitCode.DONE


@click.command(cls=AnsweringCommand)
@click.argument("files", nargs=-1, metavar="[FILE | FOLDER | hf:OWNER/NAME]...")
@click.option(
    "--profile",
    envvar="AIRLOCK_PRESET_PROFILE",
    default="32b",
    show_default=True,
    help="Whose settings and tokenizer.",
)
@options("set", "json")
@with_console
def data(_: Console, files: tuple[str, ...], *, as_json: bool, **options: Any) -> ExitCode:
    """Show what would be trained on of FILEs, without training: samples, loss, what is left out.

    Of the model only the tokenizer is fetched; --profile tiny needs none.
    """
    request, environ = Request(data=joined(files), **options), os.environ
    config = _resolved(request, environ)
    try:  # a bad row among the first is shown with the others
        check_data(replace(config, data=replace(config.data, on_bad_row="skip")))
    except NoDataError as error:
        do = f"{again(request.profile)} FILE.jsonl   # or a folder, or hf:OWNER/NAME: docs/data.md"
        raise UserError(str(error.args[0]), do=do) from error
    env, signals = dict(environ), Signals.listening()
    how = ["json"] if as_json else []
    what = "the data cannot be used as they are"
    with scratch("prepare") as folder:
        run = _begun(RunDir(Path(folder)), config)  # stands in for a run folder
        model = have_tokenizer(config, run, env, signals)
        have_data_of_hub(config, run, env, signals)
        children.run_well(what, "train.describe", run.path, model, *how, env=env, signals=signals)
    return ExitCode.DONE


def _resolved(request: Request, environ: Mapping[str, str]) -> RunConfig:
    if request.script is not None:
        raise UserError("a script prepares its own data", do="a profile: ./start.sh 32b …")
    config, _ = resolve_job(request, environ)
    return config


@contextmanager
def _kept_folder(config: RunConfig) -> Iterator[RunDir]:
    """Yield a folder like a run's that is kept: it holds some samples and the skipped rows."""
    kept = cache_folder() / "prepare_only"
    folder = kept / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.profile}-{os.getpid()}"
    folder.mkdir(parents=True)
    yield _begun(RunDir(folder), config)
    for old in sorted(kept.iterdir())[:-_NUM_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _begun(run: RunDir, config: RunConfig) -> RunDir:
    run.events.mkdir()
    run.config.write_text(config_text(config, {}), encoding="utf-8")
    return run
