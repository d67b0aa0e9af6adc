"""`python -m diagnostics.imports`: can everything that a rank imports be imported, at what cost?

One fresh process imports the modules in the order of a rank, so that each is charged with what the
ones before it left to do. It notes what it is about to do in a file, so that a module that hangs or
kills the process is known by name.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from diagnostics.result import Findings, install_command, last_line
from launch.memory import MIB, smaps_rollup
from launch.resolve import load_profile
from rundir.errors import UserError
from rundir.finding import Finding
from rundir.paths import ROOT

MODEL_TYPE = "model_type:"  # before a Hugging Face model type: the module of its model
_BEFORE = ("torch", "numpy", "tokenizers", "safetensors", "transformers")
_AFTER = ("peft", "pyarrow", "train.worker")
_OUR_PACKAGES = ("rundir", "launch", "train", "diagnostics")
_POLL_S = 0.05
_GRACE_S = 1.0  # for the child to write its stacks when the time is up
_MAX_LOG_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What one import came to, as the child notes it; `error` is the exception's last line."""

    name: str
    seconds: float
    added_private_bytes: int
    num_threads_started: int
    initialised_cuda: bool
    error: str | None


@click.command()
@click.option("--module", "modules", multiple=True, metavar="NAME", help="Test these instead.")
@click.option("--profile", envvar="AIRLOCK_PRESET_PROFILE", default="tiny", show_default=True,
              help="Whose model is imported.")  # fmt: skip
@click.option("--timeout-s", default=300.0, show_default=True, help="Longest for each module.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
@click.option("--in-child", type=click.Path(path_type=Path), hidden=True)
def main(
    modules: tuple[str, ...],
    profile: str,
    timeout_s: float,
    as_json: bool,
    in_child: Path | None,
) -> None:
    """Import what a rank imports, one by one in a fresh process; exits with 4 if one fails."""
    if in_child is not None:
        import_each(modules, in_child, timeout_s)
        return
    try:
        names = modules or rank_modules(profile)
    except UserError as error:
        click.echo(f"airlock: {error}", err=True)
        sys.exit(int(error.code))
    findings = Findings("imports")
    for finding in check_imports(names, timeout_s):
        findings.add(finding)
    findings.finish(as_json=as_json)


def rank_modules(profile: str) -> tuple[str, ...]:
    """What a rank of `profile` imports, in its order. Raises UserError for an unknown profile."""
    model_type = load_profile(profile).get("architecture", {}).get("model_type")
    return (*_BEFORE, *([f"{MODEL_TYPE}{model_type}"] if model_type else []), *_AFTER)


def check_imports(names: Sequence[str], timeout_s: float) -> Iterator[Finding]:
    """A finding for each of `names` as soon as it is known, up to one that ends the process."""
    with tempfile.TemporaryDirectory(prefix="airlock-imports-") as folder:
        progress, log = Path(folder, "progress.jsonl"), Path(folder, "output.log")
        progress.touch()
        with log.open("wb") as output:
            child = _start_child(names, progress, timeout_s, output.fileno())
        num_done, begun = 0, time.monotonic()
        try:
            while num_done < len(names):
                has_ended = child.poll() is not None  # asked first: what it wrote is then complete
                whole_lines = progress.read_text(encoding="utf-8").split("\n")[:-1]
                for line in whole_lines[num_done:]:
                    yield judge(Imported(**json.loads(line)))
                    num_done, begun = num_done + 1, time.monotonic()
                is_late = time.monotonic() - begun > timeout_s + _GRACE_S
                if num_done < len(names) and (has_ended or is_late):
                    how = _how_it_ended(child.returncode) if has_ended else None
                    yield _cut_short(names, num_done, how or f"hangs: no end after {timeout_s:g} s",
                                     log.read_text(encoding="utf-8", errors="replace"))  # fmt: skip
                    return
                time.sleep(_POLL_S)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _start_child(
    names: Sequence[str], progress: Path, timeout_s: float, output: int
) -> subprocess.Popen[bytes]:
    """Start the importing process, which dies with this one, in a process group of its own."""
    command = [sys.executable, "-P", "-m", "launch.child", str(os.getpid()), "diagnostics.imports",
               "--in-child", str(progress), "--timeout-s", str(timeout_s)]  # fmt: skip
    for name in names:
        command += ["--module", name]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )


def import_each(names: Sequence[str], progress: Path, timeout_s: float) -> None:
    """Import `names` one after the other and note each in `progress`, a line of JSON."""
    faulthandler.enable()
    for name in names:
        faulthandler.dump_traceback_later(timeout_s)  # stacks to the log; the parent ends us
        threads = _threads()  # by id, with faulthandler's: it takes a moment to end
        memory_bytes, had_cuda, error = smaps_rollup("self")["Pss_Anon"], _cuda_is_up(), None
        start = time.perf_counter()
        try:
            _import(name)
        except BaseException as raised:  # noqa: BLE001 - a module may as well call sys.exit
            error = last_line(raised)
        seconds = time.perf_counter() - start
        num_threads_started = len(_threads() - threads)
        faulthandler.cancel_dump_traceback_later()
        outcome = Imported(
            name=name, seconds=seconds, error=error,
            added_private_bytes=smaps_rollup("self")["Pss_Anon"] - memory_bytes,
            num_threads_started=num_threads_started,
            initialised_cuda=_cuda_is_up() and not had_cuda,
        )  # fmt: skip
        with progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def _import(name: str) -> None:
    if not name.startswith(MODEL_TYPE):
        importlib.import_module(name)
        return
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    # As AutoModelForCausalLM does: the name of the module does not always follow from the type.
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[name.removeprefix(MODEL_TYPE)]]
    importlib.import_module(model_class.__module__)


def _threads() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}


def _cuda_is_up() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # a torch that failed may lack it
    return cuda is not None and bool(cuda.is_initialized())


def judge(imported: Imported) -> Finding:
    """The finding of a module whose import came to an end."""
    figures = asdict(imported)
    name = str(figures.pop("name"))
    text = (
        f"{imported.seconds:.2f} s, private memory {imported.added_private_bytes / MIB:+.0f} MiB, "
        f"threads {imported.num_threads_started:+d}"
    )
    warning = ""
    if imported.initialised_cuda:
        warning = f"importing {name} initialises CUDA; a process forked after it cannot use CUDA"
    return Finding(
        check=name, ok=imported.error is None, text=imported.error or text,
        do=_advice(name), warning=warning, figures=figures,
    )  # fmt: skip


def _advice(name: str) -> str:
    """What to type when `name` cannot be imported."""
    if name.split(".", maxsplit=1)[0] in _OUR_PACKAGES:
        return f"{install_command()}   # and `git status`: is this clone as it was?"
    return install_command()


def _cut_short(names: Sequence[str], index: int, how: str, log: str) -> Finding:
    """The finding of the module during whose import the process hung or ended."""
    name, left = names[index], names[index + 1 :]
    output = "".join(f"\n      | {line}" for line in _last_words(log))
    not_reached = f"; not reached: {', '.join(left)}" if left else ""
    code = name if not name.startswith(MODEL_TYPE) else "transformers"
    shell = f"cd {shlex.quote(str(ROOT))} && {shlex.quote(sys.executable)}"
    return Finding(
        check=name, ok=False, text=how + not_reached + output,
        do=f"{shell} -X faulthandler -X importtime -c 'import {code}'   # shows how far it gets",
        figures={"not_reached": list(left)},
    )  # fmt: skip


def _last_words(log: str) -> list[str]:
    """The stacks that faulthandler wrote, from the top; without any, the last lines."""
    lines = [line for line in log.strip().splitlines() if "<frozen " not in line]
    for index, line in enumerate(lines):
        if line.startswith(("Timeout (", "Fatal Python error")):
            return lines[index : index + _MAX_LOG_LINES]
    return lines[-_MAX_LOG_LINES:]


def _how_it_ended(returncode: int) -> str:
    if returncode >= 0:
        return f"ended the process with exit code {returncode}"
    hint = {signal.SIGKILL: " (out of memory? see `dmesg`)", signal.SIGILL: " (wrong CPU type?)"}
    number = signal.Signals(-returncode)
    return f"killed the process: {number.name}{hint.get(number, '')}"


if __name__ == "__main__":
    main(prog_name="diagnostics.imports")
