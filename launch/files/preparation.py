"""Preparation before any rank starts: the model's files and the tokenised data."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from launch.files import page_cache
from launch.files.load_mode import choose_loading
from launch.files.model_folder import check_cached, made_model_folder, missing_files, snapshot
from machine.processes import children
from machine.processes.signals import Signals
from rundir.config import RunConfig
from rundir.data_paths import data_paths
from rundir.errors import ExitCode, UserError
from rundir.paths import RunDir
from rundir.prepared import Prepared, read_prepared, write_prepared
from rundir.seal import use_sealed


def prepare(
    config: RunConfig,
    run: RunDir,
    *,
    resume_from: Path | None,
    env: dict[str, str],
    signals: Signals,
) -> Prepared:
    """Fetch or make the model, tokenise the data, and write prepared.json.

    Raises UserError with the child's exit code and reason if that fails, or if the weights cannot
    be used; Interrupted if a stop was requested; and OSError.
    """
    model_path = have_model(config, run, env, signals)
    loading = choose_loading(config, model_path)
    page_cache.begin(loading.read_in, env)
    have_data_of_hub(config, run, env, signals)
    resume = [] if resume_from is None else [resume_from]
    what = "the data could not be prepared"
    children.run_well(
        what, "train.prepare", run.path, model_path, *resume, env=env, signals=signals
    )
    prepared = replace(read_prepared(run), loading=loading)
    try:
        write_prepared(run, prepared)
    except OSError as error:
        raise UserError(
            f"cannot write the run folder: {error}",
            do="free space, or AIRLOCK_RUNS_DIR=/elsewhere",
            code=ExitCode.PREFLIGHT,
        ) from error
    return prepared


def have_model(config: RunConfig, run: RunDir, env: dict[str, str], signals: Signals) -> Path:
    """Return the local folder of the model, made or fetched if it is not there yet.

    With random weights the folder need not hold weights, and a model with an [architecture] needs
    no fetched files at all.
    """
    is_random = config.launch.load == "random"
    if config.model.path and Path(config.model.path).is_dir():
        return Path(config.model.path).resolve()
    if config.model.path and not (is_random and config.architecture):
        return _hub_model(config, run, env, signals, weights=not is_random)
    folder = made_model_folder(config)
    if not use_sealed(folder):
        shutil.rmtree(folder, ignore_errors=True)
        children.run_well(
            "the model could not be made",
            "train.model.make_checkpoint",
            run.path,
            folder,
            env=env,
            signals=signals,
        )
    return folder


def have_tokenizer(config: RunConfig, run: RunDir, env: dict[str, str], signals: Signals) -> Path:
    """Return the local folder of the model; the weights need not be there."""
    if config.model.path and not Path(config.model.path).is_dir():
        check_cached(config, weights=False)
        return _hub_model(config, run, env, signals, weights=False)
    return have_model(config, run, env, signals)


def _hub_model(
    config: RunConfig, run: RunDir, env: dict[str, str], signals: Signals, *, weights: bool
) -> Path:
    """Return the folder of a model of the Hub; the Hub is not asked if all files are local."""
    model, link = config.model, run.path / "base_model"
    folder = snapshot(model.path, model.revision, os.environ)
    if folder is not None and not missing_files(folder, weights=weights):
        link.symlink_to(folder)
        return folder
    what = [] if weights else ["without-weights"]
    children.run_well(
        f"the model {model.path} could not be fetched",
        "launch.files.fetch",
        model.path,
        link,
        model.revision,
        *what,
        env=_online(env),
        signals=signals,
    )
    return link.resolve()


def have_data_of_hub(config: RunConfig, run: RunDir, env: dict[str, str], signals: Signals) -> None:
    """Fetch the datasets of the Hub that data.path, data.eval_path and named sets name."""
    texts = {"path": config.data.path, "eval_path": config.data.eval_path}
    texts |= {f"set_{name}": path.path for name, path in config.evaluation.items()}
    for field, text in texts.items():
        for number, path in enumerate(data_paths(text)):
            if not path.is_of_hub:
                continue
            folder = run.data_of_hub(field, number)
            children.run_well(
                f"the dataset {path.path} could not be fetched",
                "launch.files.fetch_data",
                path.path,
                folder,
                env=_online(env),
                signals=signals,
            )


def _online(env: dict[str, str]) -> dict[str, str]:
    """Return `env` without the ranks' offline mode, unless the user set it.

    A model that is missing then has been refused before (check_model).
    """
    return {
        key: value
        for key, value in env.items()
        if key != "HF_HUB_OFFLINE" or os.environ.get(key) == value
    }
