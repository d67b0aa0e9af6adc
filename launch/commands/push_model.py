"""`./airlock push`: the model of a run, with its card, to the Hub."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from launch.commands.try_model import trained_run
from machine.processes import children
from machine.processes.signals import Interrupted, Signals
from rundir.card.model_card import CARD, write_card
from rundir.errors import UserError
from rundir.exit_codes import ExitCode
from rundir.paths import shown


def push_model(
    name: str,
    repo: str,
    environ: Mapping[str, str],
    *,
    is_public: bool,
    replaces: bool,
    is_adapter: bool,
) -> ExitCode:
    """Upload what the run called `name` has exported to `repo`; a child does it.

    Raises UserError if there is nothing to upload; the child reports what else goes wrong.
    """
    run = trained_run(name, "push")
    again = f"./airlock push {shlex.quote(shown(run.path))}"
    if repo.count("/") != 1 or repo.startswith(("/", ".")) or repo.endswith("/"):
        raise UserError(f"{repo!r} is not OWNER/NAME", do=f"{again} OWNER/NAME")
    folder = run.adapter if is_adapter or not run.model.is_dir() else run.model
    if not folder.is_dir():
        do = f"{again} {repo}   # uploads the model"
        raise UserError(f"{run.run_id} has trained no adapters to upload alone", do=do)
    if not (folder / CARD).is_file():  # exported by an earlier version
        try:
            write_card(run, folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"the card of {folder} cannot be written: {error}",
                do=f"write {folder / CARD}, then: {again} {repo}",
                code=ExitCode.PREFLIGHT,
            ) from error
    options = {"public": is_public, "replace": replaces}
    asked = [word for word, is_set in options.items() if is_set]
    typed = " ".join([again, repo, *(["--adapter"] if is_adapter else []), *_typed(asked)])
    env = dict(environ) | {"PYTHONPATH": children.python_path(environ), "PYTHONSAFEPATH": "1"}
    signals = Signals()
    signals.listen()
    try:
        code = children.run(
            "launch.files.push", folder, repo, typed, *asked, env=env, signals=signals
        )
    except Interrupted:
        return ExitCode.INTERRUPTED_UNSAVED
    return ExitCode(code) if code in list(ExitCode) else ExitCode.PREFLIGHT


def _typed(asked: list[str]) -> list[str]:
    return [f"--{word}" for word in asked if word != "replace"]
