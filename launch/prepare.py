"""What is made ready before any rank starts: the model's files and the tokenised data."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

from launch import children
from launch.checkpoint_files import read_checkpoint
from launch.loading import choose_loading
from launch.signals import Signals
from rundir.config import RunConfig
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir, cache_folder
from rundir.prepared import Prepared, read_prepared, write_prepared
from rundir.seal import is_sealed


def check_data(config: RunConfig) -> None:
    """Raise UserError unless the named data files are there and can be read."""
    if not config.data.path:
        raise UserError(
            f"{config.profile} names no training data",
            do=f"./start.sh {config.profile} --data FILE.jsonl   # rows with `prompt`, `response`",
            code=ExitCode.DATA,
        )
    for path in filter(None, (config.data.path, config.data.eval_path)):
        try:
            found = Path(path).stat()  # before it is opened: opening a pipe would wait for ever
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            with Path(path).open("rb") as file:
                is_empty = not file.read(1)
        except OSError as error:
            raise UserError(
                f"cannot read the data {path}: {error.strerror}",
                do="--data PATH names a .jsonl file with `prompt` and `response` in every row",
                code=ExitCode.DATA,
            ) from error
        if is_empty:
            raise UserError(f"the data {path} is empty", do="--data PATH", code=ExitCode.DATA)


def check_model(config: RunConfig) -> None:
    """Raise UserError when `model.path` cannot be a model: a folder without one, a bad id.

    Nor when a folder's weights are damaged, unless none are to be read.
    """
    path = Path(config.model.path)
    if not config.model.path:
        if not config.architecture:
            raise UserError("no model: model.path is empty", do="--set model.path=ID_OR_FOLDER")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(
                f"{path} holds no model: it has no config.json",
                do="--set model.path=FOLDER with a Hugging Face checkpoint in it",
            )
        if config.launch.load != "random":
            read_checkpoint(path)
    elif config.model.path.startswith((".", "/", "~")) or config.model.path.count("/") != 1:
        raise UserError(
            f"no model {config.model.path!r}: neither a folder nor a Hugging Face id",
            do="--set model.path=OWNER/NAME, or a folder that exists",
        )


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
        # Ranks are offline, this child is not, unless the user wants it so.
        online = {key: value for key, value in env.items() if key != "HF_HUB_OFFLINE"}
        if "HF_HUB_OFFLINE" in os.environ:
            online["HF_HUB_OFFLINE"] = os.environ["HF_HUB_OFFLINE"]
        link = run.path / "base_model"
        what = ["without-weights"] if is_random else []
        code = children.run(
            "launch.fetch", config.model.path, link, *what, env=online, signals=signals
        )
        _check(code, f"the model {config.model.path} could not be fetched")
        return link.resolve()
    folder = made_model_folder(config)
    if not is_sealed(folder):
        shutil.rmtree(folder, ignore_errors=True)
        code = children.run("train.make_checkpoint", run.path, folder, env=env, signals=signals)
        _check(code, "the model could not be made")
    return folder


def model_folder(config: RunConfig) -> Path:
    """Where the model's files lie or will lie; for one of the hub's no folder that there is."""
    return Path(config.model.path) if config.model.path else made_model_folder(config)


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
