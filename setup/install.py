"""Make `.venv` with uv and install what is pinned; explain what is wrong if that fails.

Standard library only, and no syntax newer than Python 3.8's: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import BinaryIO

from setup.check import python_fits, required_python
from setup.uv import WHEEL, CommandError, fetched, on_path, run, settings_of_pip

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
LOG = VENV / "install.log"

# Measured for torch 2.13: 1.4 GiB installed for CPU. With CUDA's libraries about 7 GiB, an estimate
# from the sizes of their wheels. The rest is for downloads.
_NEEDED_CPU_GIB = 3
_NEEDED_CUDA_GIB = 8
_GIB = 1 << 30

_OTHER_INDEX = (
    "tries again; PIP_INDEX_URL=URL before it names a mirror of PyPI, PIP_FIND_LINKS=DIR a folder"
    " of wheels"
)


class SetupError(Exception):
    """One line on what is wrong, and after it the next command to type."""


class DiskFullError(SetupError):
    """There is too little room; a package may be installed in part."""


def say(text: str) -> None:
    """Print a message to the user, on stderr."""
    sys.stderr.write(f"airlock: {text}\n")
    sys.stderr.flush()


class Install:
    """One attempt to make `.venv`, by one uv, in one environment."""

    def __init__(self, extra: str, typed: str, log: BinaryIO) -> None:
        self.typed, self.log = typed, log
        self.requirements = ROOT / f"requirements{'-' + extra if extra else ''}.txt"
        self.env, self.options = settings_of_pip()
        self.disks = {VENV.stat().st_dev: VENV}
        self.uv = self._find_uv()
        try:
            cache = Path(self._uv("cache", "dir").splitlines()[-1])
        except CommandError as failed:
            raise self._error(f"{self.uv} does not work", failed) from None
        try:
            cache.mkdir(parents=True, exist_ok=True)
            if not os.access(cache, os.W_OK):
                raise PermissionError
        except OSError:  # no usable home, as in a container
            self.env["UV_CACHE_DIR"] = str(VENV / ".uv/cache")
        else:
            self.disks = {cache.stat().st_dev: cache, **self.disks}
        if len(self.disks) > 1:
            self.env.setdefault("UV_LINK_MODE", "copy")  # chosen by uv itself, it causes a warning

    def _find_uv(self) -> str:
        if uv := on_path():
            return uv
        say(f"fetching {WHEEL}, which makes .venv")
        try:
            uv = fetched(VENV / ".uv", self.log)
        except CommandError as failed:
            raise self._error("pip cannot get uv", failed) from None
        if uv is None:
            raise SetupError(
                f"{sys.executable} has neither pip nor venv, and there is no uv on PATH. Type:\n"
                "  curl -LsSf https://astral.sh/uv/install.sh | sh  # or apt install python3-venv\n"
                f"  {self.typed}"
            )
        return uv

    def _uv(self, *arguments: str, shown: bool = False) -> str:
        # The user's folder may have a pyproject.toml, which is set for another project.
        options = ["--project", str(ROOT), *([] if shown else ["--color", "never"])]
        return run([self.uv, *options, *arguments], self.log, self.env, shown=shown)

    def make_python(self) -> None:
        """Make `.venv` without packages, from this Python or one that uv finds or fetches."""
        if os.access(PYTHON, os.X_OK):
            return
        needed = python = required_python((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        if python_fits(sys.version_info[:3], needed):
            # By its own name, python3.11: when an upgrade of python3 removes that, the link dangles
            # and .venv is made anew, instead of running without its packages.
            python = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
        try:
            self._uv("venv", "--allow-existing", "--no-project", "--python", python, str(VENV))
        except CommandError as failed:
            hint = f"tries again; put a Python {needed} on PATH before it"
            raise self._error("uv cannot make .venv", failed, hint) from None
        self._forget_another()

    def _forget_another(self) -> None:
        """Have uv look at the new Python itself.

        uv caches to which environment a Python belongs, by its path. Was there ever one at this
        path without its pyvenv.cfg, it would install into the Python that the user's own is.
        """
        if self._environment() == VENV.resolve():
            return
        cache = Path(self._uv("cache", "dir").splitlines()[-1])
        for known in cache.glob("interpreter-v*"):
            shutil.rmtree(known, ignore_errors=True)
        environment = self._environment()
        if environment != VENV.resolve():
            raise SetupError(
                f"uv takes {PYTHON} for that of {environment}, and would install into it\n"
                f"  {shlex.quote(self.uv)} cache clean && {self.typed}\n      has it look anew"
            )

    def _environment(self) -> Path:
        """Return the environment that uv would install into."""
        report = self._uv("pip", "freeze", "--python", str(PYTHON))
        environment = re.search(
            r"environment at: (.+)", report
        )  # not always said of the project's own
        return Path(environment[1].strip()).resolve() if environment else VENV.resolve()

    def choose_torch(self) -> list[str]:
        """Choose and announce the build of torch, before it is fetched; return uv's options for it.

        Without an NVIDIA driver it is the build for CPU, unless AIRLOCK_TORCH says otherwise.

        Raises:
            SetupError: there is no room for it, or the build in AIRLOCK_TORCH is not available.
        """
        asked = os.environ.get("AIRLOCK_TORCH", "")
        if asked not in ("", "cuda", "cpu"):
            raise SetupError(
                f"AIRLOCK_TORCH={asked}: it can be cuda or cpu\n  AIRLOCK_TORCH=cpu {self.typed}"
            )
        try:
            plan = self._install("--dry-run")
        except CommandError as failed:
            raise self._error("uv cannot resolve what is pinned", failed) from None
        torch = re.search(r"^ [+~] torch==(\S+)", plan, re.MULTILINE)
        if torch is None:
            return []
        if asked == "cuda" and "+cpu" in torch[1]:
            raise SetupError(
                f"AIRLOCK_TORCH=cuda, but where pip is set to look there is torch {torch[1]}\n"
                "  PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL= PIP_EXTRA_INDEX_URL= PIP_FIND_LINKS="
                f" PIP_NO_INDEX= AIRLOCK_TORCH=cuda {self.typed}\n      looks on PyPI alone"
            )
        options: list[str] = []
        has_driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi")
        if _brings_cuda(plan) and (asked == "cpu" or not (asked or has_driver)):
            plan, options = self._resolve_for_cpu(plan, asked)
        needed_gib = _NEEDED_CUDA_GIB if _brings_cuda(plan) else _NEEDED_CPU_GIB
        for path in self.disks.values():
            if _free_gib(path) < needed_gib:
                raise SetupError(self._full(f", {needed_gib} GiB needed in {path}"))
        return options

    def _resolve_for_cpu(self, plan: str, asked: str) -> tuple[str, list[str]]:
        """Return (plan, options) for torch's CPU build; the given plan if that is not available."""
        why = "as AIRLOCK_TORCH says" if asked else "no NVIDIA driver here"
        options = ["--torch-backend=cpu"]
        try:
            for_cpu = self._install("--dry-run", *options)
            if _brings_cuda(for_cpu):  # uv may not ask PyTorch's own index
                raise CommandError(for_cpu)
        except CommandError as failed:
            if asked:
                raise self._error("torch's build for CPU cannot be had", failed) from None
            say(
                f"{why}, yet torch's build for CPU cannot be had ({LOG}): what comes brings ~3 GB"
                " of CUDA libraries; PIP_EXTRA_INDEX_URL=URL names an index that has it"
            )
            return plan, []
        say(
            f"{why}: torch will be its build for CPU, without ~3 GB of CUDA libraries; for those:"
            f" rm -rf {shlex.quote(str(VENV))}; AIRLOCK_TORCH=cuda {self.typed}"
        )
        return for_cpu, options

    def install(self, options: list[str]) -> None:
        """Install what is pinned. Raises SetupError if uv could not."""
        try:
            self._install(*options, shown=True)
        except CommandError as failed:
            raise self._error("uv cannot install what is pinned", failed) from None

    def compile(self) -> None:
        """Compile what a start imports; a failure, for want of room for example, is no error."""
        say("compiling what a start imports")
        command = [str(PYTHON), "-m", "setup.compile", str(VENV / "lib")]
        with contextlib.suppress(CommandError):
            run(command, self.log, dict(os.environ))

    def _install(self, *options: str, shown: bool = False) -> str:
        where = ("--python", str(PYTHON), "--requirements", str(self.requirements))
        return self._uv("pip", "install", *where, *self.options, *options, shown=shown)

    def _error(self, what: str, failed: CommandError, hint: str = _OTHER_INDEX) -> SetupError:
        """Return the error `what`, with the output of the failed command and what to type."""
        if re.search(r"No space left on device|os error 28|Errno 28|quota exceeded", failed.output):
            return DiskFullError(self._full(""))
        _, _, last = failed.output.rpartition("\x1b[2K")  # on a terminal, text after the bars
        lines = [f"    {line.strip()}" for line in last.splitlines() if line.strip()]
        text = "\n".join(lines[-12:])
        return SetupError(f"{what} (log: {LOG}):\n{text}\n  {self.typed}\n      {hint}")

    def _full(self, needed: str) -> str:
        free = " and ".join(f"{_free_gib(path):.2f} GiB in {path}" for path in self.disks.values())
        return (
            f"the disk is too full for .venv: free are {free}{needed}\n  {self.typed}\n      goes"
            " on, once there is room; UV_CACHE_DIR=DIR before it has uv fetch to another disk"
        )


def _brings_cuda(plan: str) -> bool:
    return re.search(r"^ \+ nvidia-(?!ml-py)", plan, re.MULTILINE) is not None


def _free_gib(path: Path) -> float:
    return shutil.disk_usage(path).free / _GIB
