"""`python -m diagnostics.imports`: can everything that a rank imports be imported, at what cost?

One fresh process imports the modules in the order a rank does, so that each is charged only for
what the earlier ones have not already loaded. It records each completed import in a file, so that a
module that hangs or kills the process is known by name.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from diagnostics.probes.import_child import MODEL_TYPE
from diagnostics.probes.result import Findings, install_command
from diagnostics.probes.rung import rung
from launch.checks.run_rung import how_it_ended, last_words, quoted
from launch.config.job import resolve_job
from launch.config.request import Request
from launch.files.model_folder import fetched_model_folder
from machine.processes import children
from rundir.atomic import scratch
from rundir.finding import Finding
from rundir.paths import PACKAGES, ROOT
from rundir.units import MIB

_BEFORE = ("torch", "numpy", "tokenizers", "safetensors", "transformers")
_AFTER = ("peft", "pyarrow", "train.worker")
_MAX_NAMES = 3
_IS_CLONE_WHOLE = "   # and `git status`: is this clone as it was?"
_POLL_S = 0.05
_GRACE_S = 1.0  # for the child to write its stacks after the timeout


@click.option(
    "--module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="Import this module instead; may be repeated.",
)
@rung("imports", ends=False)
def main(findings: Findings, request: Request, timeout_s: float, modules: tuple[str, ...]) -> None:
    """Import what a rank imports, one by one in a fresh process; exits with 4 if one fails."""
    names = modules or rank_modules(request)
    for finding in check_imports(names, timeout_s, findings.note_memory):
        findings.add(finding)
    findings.finish(f"{len(names)} modules, {', '.join(names[:_MAX_NAMES])}, …")


def rank_modules(request: Request) -> tuple[str, ...]:
    """Return the modules that a rank of that run imports, in order.

    Raises UserError for an unknown profile.
    """
    config, _ = resolve_job(request, os.environ)
    folder = fetched_model_folder(config)
    model_type = config.architecture.get("model_type")
    if folder is not None:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = described.get("model_type")
    return (*_BEFORE, *([f"{MODEL_TYPE}{model_type}"] if model_type else []), *_AFTER)


def check_imports(
    names: Sequence[str], timeout_s: float, show_progress: Callable[[], None]
) -> Iterator[Finding]:
    """Yield a finding for each of `names` as soon as it is known, up to one that ends the process.

    `show_progress` is called periodically while the process lives.
    """
    with scratch("imports") as folder:
        progress, log = folder / "progress.jsonl", folder / "output.log"
        with log.open("wb") as output:
            child = children.start(
                "diagnostics.probes.import_child",
                progress,
                str(timeout_s),
                *names,
                env=dict(os.environ),
                output=output,
            )
        num_done, begun = 0, time.monotonic()
        try:
            while num_done < len(names):
                show_progress()
                has_ended = child.poll() is not None  # asked first: what it wrote is then complete
                for line in _whole_lines(progress)[num_done:]:
                    yield _judge(json.loads(line))
                    num_done, begun = num_done + 1, time.monotonic()
                is_late = time.monotonic() - begun > timeout_s + _GRACE_S
                if num_done < len(names) and (has_ended or is_late):
                    how = how_it_ended(child.returncode) if has_ended else None
                    how = how or f"hangs: no end after {timeout_s:g} s"
                    words = quoted(last_words(log.read_text(encoding="utf-8", errors="replace")))
                    if progress.exists():
                        yield _cut_short(names, num_done, how, words)
                    else:
                        yield _never_begun(how, words)
                    return
                time.sleep(_POLL_S)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _whole_lines(progress: Path) -> list[str]:
    if not progress.exists():  # the child makes it
        return []
    return progress.read_text(encoding="utf-8").split("\n")[:-1]


def _judge(imported: dict[str, Any]) -> Finding:
    """Return the finding of a module whose import finished, or raised."""
    name, error = imported["name"], imported["error"]
    text = (
        f"{imported['seconds']:.2f} s, private memory "
        f"{imported['added_private_bytes'] / MIB:+.0f} MiB, "
        f"threads {imported['num_threads_started']:+d}"
    )
    warning, do = "", ""
    if imported["initialised_cuda"]:
        warning = f"importing {name} initialises CUDA; a process forked after it cannot use CUDA"
    if error:
        is_own = name.partition(".")[0] in PACKAGES
        do = install_command() + (_IS_CLONE_WHOLE if is_own else "")
    return Finding(
        check=name,
        ok=error is None,
        text=error or text,
        do=do,
        warning=warning,
        figures={key: value for key, value in imported.items() if key != "name"},
    )


def _never_begun(how: str, words: str) -> Finding:
    """Return the finding of a process that hung or ended before it imported any module."""
    return Finding(
        check="the importing process",
        ok=False,
        text=f"{how}, before it imported anything{words}",
        do=install_command() + _IS_CLONE_WHOLE,
    )


def _cut_short(names: Sequence[str], index: int, how: str, words: str) -> Finding:
    """Return the finding of the module during whose import the process hung or ended.

    `words` are the last lines of its output.
    """
    name, left = names[index], names[index + 1 :]
    not_reached = f"; not reached: {', '.join(left)}" if left else ""
    code = name if not name.startswith(MODEL_TYPE) else "transformers"
    shell = f"cd {shlex.quote(str(ROOT))} && {shlex.quote(sys.executable)}"
    return Finding(
        check=name,
        ok=False,
        text=how + not_reached + words,
        do=f"{shell} -X faulthandler -X importtime -c 'import {code}'   # shows how far it gets",
        figures={"not_reached": list(left)},
    )


if __name__ == "__main__":
    main(prog_name="diagnostics.imports")
