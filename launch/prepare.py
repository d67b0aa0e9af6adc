"""What is made ready before any rank starts: the model's files and the tokenised data."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from launch import children
from launch.checkpoint_files import read_checkpoint
from launch.hub_cache import is_offline, missing_files, repo_folder, snapshot
from launch.loading import choose_loading
from launch.signals import Signals
from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, cache_folder
from rundir.prepared import Prepared, read_prepared, write_prepared
from rundir.seal import is_sealed


def check_model(config: RunConfig) -> None:
    """Raise UserError when `model.path` cannot be a model: a folder without one, a bad id.

    Nor when weights that are here are damaged, unless none are to be read; nor when some are not
    here and may not be fetched.
    """
    path = Path(config.model.path)
    weights = config.launch.load != "random"
    if not config.model.path:
        if not config.architecture:
            raise UserError("no model: model.path is empty", do="--set model.path=ID_OR_FOLDER")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(
                f"{path} holds no model: it has no config.json",
                do="--set model.path=FOLDER with a Hugging Face checkpoint in it",
            )
        if weights:
            read_checkpoint(path)
    elif config.model.path.startswith((".", "/", "~")) or config.model.path.count("/") != 1:
        raise UserError(
            f"no model {config.model.path!r}: neither a folder nor a Hugging Face id",
            do="--set model.path=OWNER/NAME, or a folder that exists",
        )
    elif weights or not config.architecture:
        _check_cached(config, weights=weights)


def _check_cached(config: RunConfig, *, weights: bool) -> None:
    """Look at what the Hub's cache has of the model. Raises UserError as `check_model`."""
    model_id = config.model.path
    folder = snapshot(model_id, config.model.revision, os.environ)
    missing = ["all of it"] if folder is None else missing_files(folder, weights=weights)
    if missing and is_offline(os.environ):
        more = f" and {len(missing) - 3} more files" if len(missing) > 3 else ""  # noqa: PLR2004 - named
        raise UserError(
            f"{model_id} is not whole in {repo_folder(model_id, os.environ)}, and HF_HUB_OFFLINE=1 "
            f"forbids to fetch what is missing: {', '.join(missing[:3])}{more}",
            do=f"HF_HUB_OFFLINE=0; or `hf download {model_id}` where there is a network, and "
            "--set model.path=FOLDER with the copy",
            code=ExitCode.PREFLIGHT,
        )
    if folder is not None and not missing and weights:
        read_checkpoint(folder)


def prepare(
    config: RunConfig,
    run: RunDir,
    *,
    resume_from: Path | None,
    env: dict[str, str],
    signals: Signals,
) -> Prepared:
    """Fetch or make the model, tokenise the data, and write prepared.json.

    Raises UserError with the child's exit code when it could not be done (the child has said why),
    or when the weights cannot be used; Interrupted when a stop was asked for; and OSError.
    """
    model_path = _model_path(config, run, env, signals)
    loading = choose_loading(config, model_path)
    resume = [] if resume_from is None else [resume_from]
    code = children.run("train.prepare", run.path, model_path, *resume, env=env, signals=signals)
    _check(code, "the data could not be prepared")
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


def _model_path(config: RunConfig, run: RunDir, env: dict[str, str], signals: Signals) -> Path:
    """The local folder of the model, made or fetched if it is not there yet.

    With random weights it need have none, and of a model whose architecture is known here no file.
    """
    is_random = config.launch.load == "random"
    if config.model.path and Path(config.model.path).is_dir():
        return Path(config.model.path).resolve()
    if config.model.path and not (is_random and config.architecture):
        return _hub_model(config, run, env, signals)
    folder = made_model_folder(config)
    if not is_sealed(folder):
        shutil.rmtree(folder, ignore_errors=True)
        code = children.run("train.make_checkpoint", run.path, folder, env=env, signals=signals)
        _check(code, "the model could not be made")
    return folder


def _hub_model(config: RunConfig, run: RunDir, env: dict[str, str], signals: Signals) -> Path:
    """The folder of a model of the Hub; when all of it is here, nobody is asked for it."""
    model, link, weights = config.model, run.path / "base_model", config.launch.load != "random"
    folder = snapshot(model.path, model.revision, os.environ)
    if folder is not None and not missing_files(folder, weights=weights):
        link.symlink_to(folder)
        return folder
    # Ranks are offline, this child is not: where the user wants it so, it was refused before.
    online = {key: value for key, value in env.items() if key != "HF_HUB_OFFLINE"}
    what = [] if weights else ["without-weights"]
    code = children.run(
        "launch.fetch", model.path, link, model.revision, *what, env=online, signals=signals
    )
    _check(code, f"the model {model.path} could not be fetched")
    return link.resolve()


def model_folder(config: RunConfig) -> Path:
    """Where the model's files lie or will lie; for one of the Hub's perhaps no folder yet."""
    if not config.model.path:
        return made_model_folder(config)
    path = Path(config.model.path)
    cached = None if path.is_dir() else snapshot(str(path), config.model.revision, os.environ)
    return cached or path


def made_model_folder(config: RunConfig) -> Path:
    """Where a model made from [architecture] lies: in the cache, named after what it depends on."""
    source = Path(__file__).parent.parent / "train" / "make_checkpoint.py"
    weights = config.launch.load != "random" and [config.model.dtype, config.train.seed]
    parts = [config.architecture, weights]
    content = json.dumps(parts, sort_keys=True).encode() + source.read_bytes()
    return (
        cache_folder() / "models" / f"{config.profile}-{hashlib.sha256(content).hexdigest()[:12]}"
    )


def _check(code: int, what: str) -> None:
    if code < 0:
        do = "if nobody did that, memory ran out: `dmesg | grep -i oom`"
        raise UserError(f"{what}: killed by signal {-code}", do=do, code=ExitCode.PREFLIGHT)
    if code != 0:
        known = code if code in list(ExitCode) else ExitCode.PREFLIGHT
        raise UserError(what, do="see the lines above", code=ExitCode(known))
