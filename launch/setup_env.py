"""Make the clone's own `.venv` from the pinned requirements, or bring it up to date.

    python -P -m launch.setup_env EXTRA COMMAND [ARGUMENTS...]

Called by environment.sh with the base Python; EXTRA is "dev" or empty, and COMMAND with its
arguments is what the user typed. Exits 0 with a whole `.venv`, 4 with what is wrong and the next
command to type, 21 when interrupted. Standard library only.

What `.venv` holds besides packages: `.airlock-installing` from the first moment until all is done;
`.airlock-installed` (and `-dev`), a copy of what is pinned, which it becomes at last; install.log.
A directory with neither of the first two is somebody else's and is not touched. An install that was
killed is begun anew, since a package may be there by half; pip keeps what it has downloaded.
"""

import fcntl
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.logged_command import Progress, run_logged, say
from launch.parent import die_with_parent
from launch.setup_errors import (
    CPU_WHEELS,
    LOG,
    NEEDED_CPU_GIB,
    NEEDED_CUDA_GIB,
    ROOT,
    SetupError,
    disk_full,
    explain,
    explain_os_error,
    free_gib,
)

VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
INSTALLING = VENV / ".airlock-installing"

# In INSTALLING: pip failed, but in good order, so that the next attempt can go on from there.
PIP_ENDED = "pip ended by itself\n"

PREFLIGHT_FAILED = 4
INTERRUPTED = 21


def pinned(extra: str) -> dict[Path, str]:
    """Each marker that a complete install leaves, with its text: what is pinned now."""
    texts = [(ROOT / name).read_text() for name in ("requirements.txt", "constraints.txt")]
    markers = {VENV / ".airlock-installed": "".join(texts)}
    if extra:
        texts.append((ROOT / f"requirements-{extra}.txt").read_text())
        markers[VENV / f".airlock-installed-{extra}"] = "".join(texts)
    return markers


def is_whole(markers: dict[Path, str]) -> bool:
    """Whether `.venv` is what MARKERS say. environment.sh decides by the same rule, in shell."""
    return os.access(PYTHON, os.X_OK) and all(
        path.is_file() and path.read_text() == text for path, text in markers.items()
    )


@contextmanager
def only_one() -> Iterator[None]:
    """Hold the clone's lock, which the kernel frees however its holder ends; says who has it.

    The file stays: another process may have it open already, waiting for it.
    """
    with (ROOT / ".venv.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            say(f"waiting for process {lock.read().strip() or '?'}, which is installing .venv")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def claim(typed: str) -> bool:
    """Make sure that `.venv` is ours, and that from here on nobody takes it for whole.

    Returns whether what is in it can be gone on from; else it was killed half-way.

    Raises:
        SetupError: it is somebody else's.
    """
    VENV.mkdir(exist_ok=True)
    names = {path.name for path in VENV.iterdir()}
    if names and not any(name.startswith(".airlock-install") for name in names):
        raise SetupError(
            f"{VENV} was not made by Airlock, so it is left as it is. Type one of these:\n"
            f"  AIRLOCK_PYTHON={shlex.quote(str(PYTHON))} {typed}\n      uses it\n"
            f"  rm -r {shlex.quote(str(VENV))}\n      removes it; Airlock then makes its own"
        )
    in_order = not INSTALLING.exists() or INSTALLING.read_text() == PIP_ENDED
    INSTALLING.write_text("")
    for marker in VENV.glob(".airlock-installed*"):
        marker.unlink()
    return in_order


def brings_torch(markers: dict[Path, str]) -> bool:
    """Whether torch, by far the largest, is pinned and still to be installed."""
    torch_pin = re.compile(r"^torch\b", re.MULTILINE)
    there = any(VENV.glob("lib/python*/site-packages/torch"))
    return not there and any(torch_pin.search(text) for text in markers.values())


def runs_pip() -> bool:
    """Whether `.venv` got as far as a Python with pip, and that Python is still there."""
    if not os.access(PYTHON, os.X_OK):
        return False
    command = [str(PYTHON), "-I", "-m", "pip", "--version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def clear() -> None:
    """Empty `.venv`, but for the file that says whose it is: a kill half-way must not lose that."""
    for path in VENV.iterdir():
        if path == INSTALLING:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def torch_options(pip_settings: list[str], typed: str) -> list[str]:
    """Which torch it will be, said before gigabytes are fetched; returns pip's options for it.

    Without an NVIDIA driver it is the build for CPU, unless AIRLOCK_TORCH=cuda, or pip is set to
    look elsewhere: a mirror may have that build, and pip is not led away from it.

    Raises:
        SetupError: there is no room for it, or AIRLOCK_TORCH is something else.
    """
    asked = os.environ.get("AIRLOCK_TORCH", "")
    if asked not in ("", "cuda", "cpu"):
        raise SetupError(
            f"AIRLOCK_TORCH={asked}: it can be cuda or cpu\n  AIRLOCK_TORCH=cpu {typed}"
        )
    from_cpu_index = any("whl/cpu" in line for line in pip_settings)
    looks_elsewhere = any(re.search(r"index|find-links", line) for line in pip_settings)
    has_driver = Path("/proc/driver/nvidia/version").exists() or bool(shutil.which("nvidia-smi"))
    wants_cpu = asked == "cpu" or not (asked or has_driver)
    options: list[str] = []
    if wants_cpu and not from_cpu_index and platform.machine() == "x86_64":
        why = "as AIRLOCK_TORCH says" if asked else "no NVIDIA driver here"
        if looks_elsewhere:
            say(
                f"{why}, yet PyPI's torch for Linux x86 brings ~3 GB of CUDA libraries; pip is set"
                f" to another index; PIP_EXTRA_INDEX_URL={CPU_WHEELS} avoids that"
            )
        else:
            say(
                f"{why}: torch will be its build for CPU, without ~3 GB of CUDA libraries;"
                f" for those: AIRLOCK_TORCH=cuda {typed}"
            )
            options = ["--extra-index-url", CPU_WHEELS]
    needed_gib = NEEDED_CPU_GIB if from_cpu_index or options else NEEDED_CUDA_GIB
    if free_gib(VENV) < needed_gib:
        raise disk_full(typed, needed_gib)
    return options


def make(extra: str, typed: str, progress: Progress) -> None:
    """Make `.venv`, or go on with what is there of it, up to the marker.

    Raises:
        SetupError, OSError: it cannot be done.
    """
    markers = pinned(extra)
    if not (claim(typed) and runs_pip()):
        clear()
    with LOG.open("w") as log:
        if not PYTHON.exists():
            # By its own name, python3.11: when an upgrade of python3 takes that away, the link
            # dangles and .venv is made anew, instead of running without its packages.
            base = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
            say(f"making {VENV} with Python {platform.python_version()}, pinned packages")
            status, lines = run_logged([base, "-I", "-m", "venv", str(VENV)], log, progress)
            if status:
                raise explain(lines, "making .venv", typed)
        pip = [str(PYTHON), "-I", "-u", "-m", "pip"]
        options: list[str] = []
        if brings_torch(markers):
            options = torch_options(run_logged([*pip, "config", "list"], log, progress)[1], typed)
        say(f"installing what is pinned (log: {LOG})")
        requirements = f"requirements{'-' + extra if extra else ''}.txt"
        command = [*pip, "install", *options, "-r", str(ROOT / requirements)]
        status, lines = run_logged(command, log, progress)
        if status:
            INSTALLING.write_text(PIP_ENDED)
            raise explain(lines, "pip install", typed)
    for marker, text in markers.items():
        INSTALLING.write_text(text)
        INSTALLING.replace(marker)


def interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(extra: str, *command: str) -> int:
    typed = shlex.join(command)
    signal.signal(signal.SIGTERM, interrupt)
    # A shell that is ended while it waits for this process would leave it installing.
    die_with_parent(os.getppid(), signal.SIGTERM)
    try:
        with only_one():
            if not is_whole(pinned(extra)):
                progress = Progress()
                make(extra, typed, progress)
                say(f".venv is ready  {progress.elapsed()}")
    except (SetupError, OSError) as error:
        say(str(explain_os_error(error, typed) if isinstance(error, OSError) else error))
        return PREFLIGHT_FAILED
    except KeyboardInterrupt:
        say(f"interrupted; .venv is not complete yet. To go on:\n  {typed}")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
