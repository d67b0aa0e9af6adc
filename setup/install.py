"""Make `.venv` with uv and install what is pinned; explain what is wrong if that fails.

Standard library only, and no syntax newer than Python 3.8's: it runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from machine.gpus.cuda_driver import NEEDS_DRIVER, VERSION_FILE, driver_version, older_build
from setup.missing import ROOT, python_fits, required_python
from setup.uv import WHEEL, CommandError, fetched, on_path, run, settings_of_pip

VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
LOG = VENV / "install.log"

# Measured for torch 2.13: 1.4 GiB installed for CPU. With CUDA's libraries about 7 GiB, an estimate
# from the sizes of their wheels. The rest is for downloads.
_NEEDED_CPU_GIB = 3
_NEEDED_CUDA_GIB = 8

_WHEELS = "https://download.pytorch.org/whl"
_FOR_CPU = "--torch-backend=cpu"
_CUDA_RUNTIME = r"^ \+ nvidia-cuda-runtime(?:-cu\d+)?==(\d+)\."  # in uv's plan

_TRY_AGAIN = (
    "tries again; PIP_INDEX_URL=URL before it names a mirror of PyPI, PIP_FIND_LINKS=DIR a folder"
    " of wheels, UV_CACHE_DIR=DIR a disk with more room"
)


class SetupError(Exception):
    """One line on what is wrong, and after it the next command to type."""


def say(text: str) -> None:
    """Print a message to the user, on stderr."""
    sys.stderr.write(f"airlock: {text}\n")
    sys.stderr.flush()


class Install:
    """One attempt to make `.venv`: its steps, of which each raises SetupError if it fails."""

    def __init__(self, extra: str, typed: str, log: BinaryIO) -> None:
        self.typed, self.log = typed, log
        self.requirements = ROOT / f"requirements{'-' + extra if extra else ''}.txt"
        self.env, self.options = settings_of_pip()
        self.uv = on_path() or self._fetched()
        self.cache = Path(self._uv(f"{self.uv} does not work", "cache", "dir").splitlines()[-1])
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.cache).close()
        except OSError:  # no usable home, as in a container
            self.cache = VENV / ".uv/cache"
            self.env["UV_CACHE_DIR"] = str(self.cache)

    def _fetched(self) -> str:
        say(f"fetching {WHEEL}, which makes .venv")
        try:
            return fetched(VENV / ".uv", self.log)
        except CommandError as failed:
            hint = "without pip and venv: apt install python3-venv, or install uv itself"
            raise self._error("pip cannot get uv", failed, f"{_TRY_AGAIN}; {hint}") from None

    def make_python(self) -> None:
        """Make `.venv` without packages, from this Python or one that uv finds or fetches."""
        needed = python = required_python()
        if python_fits(needed):
            # By its own name, python3.11: when an upgrade of python3 removes that, the link dangles
            # and .venv is made anew, instead of running without its packages.
            python = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        command = ("venv", "--allow-existing", "--no-project", "--python", python, str(VENV))
        hint = f"tries again; put a Python {needed} on PATH before it"
        self._uv("uv cannot make .venv", *command, hint=hint)
        # uv caches to which environment a Python belongs, by its path. Was there ever one at this
        # path without its pyvenv.cfg, it would install into the Python that the user's own is.
        for known in self.cache.glob("interpreter-v*"):
            shutil.rmtree(known, ignore_errors=True)

    def choose_torch(self) -> list[str]:
        """Choose and announce the build of torch, before it is fetched; return uv's options for it.

        Without an NVIDIA driver it is the build for CPU, unless AIRLOCK_TORCH says otherwise.
        """
        wanted = os.environ.get("AIRLOCK_TORCH", "")
        if wanted not in ("", "cuda", "cpu"):
            raise SetupError(
                f"AIRLOCK_TORCH={wanted}: it can be cuda or cpu\n  AIRLOCK_TORCH=cpu {self.typed}"
            )
        plan = self._plan("uv cannot resolve what is pinned")
        torch = re.search(r"^ [+~] torch==(\S+)", plan, re.MULTILINE)
        if torch is None:
            return []
        if wanted == "cuda" and "+cpu" in torch[1]:
            raise SetupError(
                f"AIRLOCK_TORCH=cuda, but where pip is set to look there is torch {torch[1]}\n"
                "  PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL= PIP_EXTRA_INDEX_URL= PIP_FIND_LINKS="
                f" PIP_NO_INDEX= AIRLOCK_TORCH=cuda {self.typed}\n      looks on PyPI alone"
            )
        has_driver = VERSION_FILE.exists() or shutil.which("nvidia-smi")
        brings_cuda, options = _brings_cuda(plan), []
        if brings_cuda and (wanted == "cpu" or not (wanted or has_driver)):
            options = self._options_for_cpu(wanted)
        elif brings_cuda:
            options = self._options_for_driver(plan)
        is_for_cpu = not brings_cuda or options == [_FOR_CPU]
        needed_gib = _NEEDED_CPU_GIB if is_for_cpu else _NEEDED_CUDA_GIB
        if any(_free_gib(path) < needed_gib for path in (self.cache, VENV)):
            what = f"the disk is too full for .venv: {needed_gib} GiB needed, {self._room()}"
            raise SetupError(f"{what}\n  {self.typed}\n      {_TRY_AGAIN}")
        return options

    def _options_for_cpu(self, wanted: str) -> list[str]:
        """Return uv's options for torch's CPU build; none if that is not available."""
        why = "as AIRLOCK_TORCH says" if wanted else "no NVIDIA driver here"
        unavailable = "torch's build for CPU cannot be had"
        try:
            plan = self._plan(unavailable, _FOR_CPU)
            if _brings_cuda(plan):  # uv may not ask PyTorch's own index
                raise self._error(unavailable, CommandError(plan))
        except SetupError:
            if wanted:
                raise
            say(
                f"{why}, yet {unavailable} ({LOG}): what comes brings ~3 GB"
                " of CUDA libraries; PIP_EXTRA_INDEX_URL=URL names an index that has it"
            )
            return []
        say(
            f"{why}: torch will be its build for CPU, without ~3 GB of CUDA libraries; for those:"
            f" rm -rf {shlex.quote(str(VENV))}; AIRLOCK_TORCH=cuda {self.typed}"
        )
        return [_FOR_CPU]

    def _options_for_driver(self, plan: str) -> list[str]:
        """Return uv's options for the build that the driver here runs; none if that is planned."""
        driver, runtime = driver_version(), re.search(_CUDA_RUNTIME, plan, re.MULTILINE)
        if driver is None or runtime is None:
            return []
        cuda = int(runtime[1])
        needs = (
            f"what comes is built for CUDA {cuda}, which needs {NEEDS_DRIVER.get(cuda)} or newer"
        )
        try:
            build = older_build(driver, cuda)
        except ValueError as error:
            say(f"{error}; {needs}, and no build of torch that is pinned here runs on it")
            return []
        if build is None:
            return []
        unavailable = f"torch's build {build} cannot be had"
        try:
            if f"+{build}" not in (other := self._plan(unavailable, f"--torch-backend={build}")):
                raise self._error(unavailable, CommandError(other))
        except SetupError:
            say(
                f"the NVIDIA driver is {driver}; {needs}, and {unavailable} ({LOG}). Once"
                f" {_WHEELS}/{build} or a mirror of it can be reached:\n"
                f"  rm -rf {shlex.quote(str(VENV))}; PIP_EXTRA_INDEX_URL={_WHEELS}/{build}"
                f" {self.typed}"
            )
            return []
        say(f"the NVIDIA driver is {driver}: torch will be its build {build}, as {needs}")
        return [f"--torch-backend={build}"]

    def install(self, options: list[str]) -> None:
        """Install what is pinned, and compile it: in many containers Python cannot do that later.

        uv shows how far it is, and what is wrong, on the screen.
        """
        what = f"uv cannot install what is pinned, as it says above; {self._room()}"
        self._install(what, "--compile-bytecode", *options, shown=True)

    def _plan(self, what: str, *options: str) -> str:
        """Return what would be installed, in uv's words."""
        return self._install(what, "--dry-run", *options)

    def _install(self, what: str, *options: str, shown: bool = False) -> str:
        words = ("pip", "install", "--python", str(PYTHON), "--requirements", self.requirements)
        return self._uv(what, *map(str, words), *self.options, *options, shown=shown)

    def _uv(self, what: str, *words: str, hint: str = _TRY_AGAIN, shown: bool = False) -> str:
        """Run uv, and return what it has printed; `what` is the error if it fails."""
        # The user's folder may have a pyproject.toml, which is set for another project.
        options = ["--project", str(ROOT), *([] if shown else ["--color", "never"])]
        try:
            return run([self.uv, *options, *words], self.env, None if shown else self.log)
        except CommandError as failed:
            raise self._error(what, failed, hint) from None

    def _error(self, what: str, failed: CommandError, hint: str = _TRY_AGAIN) -> SetupError:
        """Return the error `what`, with the output of the failed command and what to type."""
        lines = [f"    {line.strip()}\n" for line in str(failed).splitlines() if line.strip()]
        text = "".join(lines[-12:])
        return SetupError(f"{what} (log: {LOG}):\n{text}  {self.typed}\n      {hint}")

    def _room(self) -> str:
        free = (f"{_free_gib(path):.2f} GiB in {path}" for path in (self.cache, VENV))
        return f"free are {' and '.join(free)}"


def _brings_cuda(plan: str) -> bool:
    return re.search(r"^ \+ nvidia-(?!ml-py)", plan, re.MULTILINE) is not None


def _free_gib(path: Path) -> float:
    return shutil.disk_usage(path).free / (1 << 30)
