"""Make the clone's own `.venv` from the pinned requirements, or bring it up to date.

    python -I launch/setup_env.py EXTRA COMMAND [ARGUMENTS...]

Called by environment.sh with the base Python; EXTRA is "dev" or empty, and COMMAND with its
arguments is what the user typed. Exits 0 with a whole `.venv`, 4 with what is wrong and the next
command to type, 21 when interrupted. Standard library only.

What `.venv` holds besides packages: `.airlock-installing` from the first moment until all is done;
`.airlock-installed` (and `-dev`), a copy of what is pinned, which it becomes at last; install.log.
A directory with neither of the first two is somebody else's and is not touched. An install that was
killed is begun anew, since a package may be there by half; pip keeps what it has downloaded.
"""

import ctypes
import errno
import fcntl
import os
import platform
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
LOG = VENV / "install.log"
INSTALLING = VENV / ".airlock-installing"

# In INSTALLING: pip failed, but in good order, so that the next attempt can go on from there.
PIP_ENDED = "pip ended by itself\n"

PREFLIGHT_FAILED = 4
INTERRUPTED = 21

# Measured for torch 2.13 from CPU wheels: 1.4 GiB installed. With CUDA's libraries about 7 GiB, an
# estimate from the sizes of their wheels. The rest is for pip's copies of what it downloads.
NEEDED_CPU_GIB = 3
NEEDED_CUDA_GIB = 8
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
GIB = 1 << 30

DISK_FULL = re.compile(r"No space left on device|Errno 28|Disk quota exceeded")
# What urllib3 and pip, 22 to 26, print when an index cannot be reached.
NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError"
    r"|SSLError|ProtocolError|RemoteDisconnected|IncompleteRead|Max retries exceeded"
    r"|Temporary failure in name resolution|Network is unreachable|Connection refused"
    r"|Connection reset|Read timed out|connection broken|Could not fetch URL"
)


class SetupError(Exception):
    """What is wrong, in one line, and after it the next command to type."""


def say(text: str) -> None:
    sys.stderr.write(f"airlock: {text}\n")
    sys.stderr.flush()


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


class Progress:
    """What pip is at, and for how long: one line that changes on a terminal, else plain lines."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        self.doing = "making .venv"

    def elapsed(self) -> str:
        seconds = int(time.monotonic() - self.started_s)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def read(self, line: str) -> None:
        """Take in one line of pip's output."""
        if found := re.match(r"\s*(?:Downloading|Using cached) (\S+?-\d[^-\s]*)\S* (\(.*)", line):
            self.doing = f"fetching {found[1]} {found[2]}"
        elif line.startswith("Installing collected packages:"):
            self.doing = f"installing {line.count(',') + 1} packages"
        elif found := re.match(r"\s*(?:Collecting|Processing|Building wheel for) (\S+)", line):
            self.doing = f"looking at {Path(found[1]).name}"
        else:
            return
        # The rest passes too quickly to be worth a line in a log.
        if not self.on_terminal and re.search(r" [MG]B\)$|^installing", self.doing):
            say(f"{self.doing}  {self.elapsed()}")

    def show(self) -> None:
        if self.on_terminal:
            line = f"airlock: {self.doing}  {self.elapsed()}"
            line = line[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()

    def hide(self) -> None:
        if self.on_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


def die_with_parent(signum: int) -> None:
    """Have the kernel send SIGNUM to this process when its parent is gone."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signum)


def run_logged(command: list[str], log: TextIO, progress: Progress) -> tuple[int, list[str]]:
    """Run COMMAND to its end; its exit status and its output by lines, which go to LOG as well.

    It runs in a session of its own, so that a Ctrl-C reaches this process alone, which then ends
    it; and it does not outlive this process.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # The user's own settings for pip hold, but for one that would install elsewhere.
        env={**os.environ, "PIP_USER": "0", "PIP_PROGRESS_BAR": "off", "PIP_NO_INPUT": "1"},
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - no threads here
    )
    lines = []
    try:
        for line in output_lines(process, progress):
            log.write(f"{line}\n")
            log.flush()
            lines.append(line)
        return process.wait(), lines
    finally:
        progress.hide()
        end(process)


def output_lines(process: subprocess.Popen[bytes], progress: Progress) -> Iterator[str]:
    """The lines of PROCESS as they come, with PROGRESS shown at least every second meanwhile."""
    pipe, rest = cast(IO[bytes], process.stdout).fileno(), b""
    while True:
        progress.show()
        if not select.select([pipe], [], [], 1.0)[0]:
            continue
        data = os.read(pipe, 1 << 16)
        *whole, rest = (rest + data).split(b"\n")
        if not data and rest:
            whole, rest = [rest], b""
        for line in whole:
            text = line.decode(errors="replace")
            progress.read(text)
            yield text
        if not data:
            return


def end(process: subprocess.Popen[bytes]) -> None:
    """End PROCESS and its session, kindly first; nothing if it has ended by itself."""
    for signum, patience_s in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, signum)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue


def free_gib(path: Path | str) -> float:
    return shutil.disk_usage(path).free / GIB


def disk_full(typed: str, needed_gib: float | None = None) -> SetupError:
    """The error for a disk with too little room for NEEDED_GIB, or that filled up meanwhile."""
    text = f"the disk is too full for .venv: {free_gib(ROOT):.2f} GiB free in {ROOT}"
    if needed_gib:
        text += f", {needed_gib} GiB needed"
    else:
        temporary = tempfile.gettempdir()
        text += f"; {free_gib(temporary):.2f} GiB in {temporary}, which pip uses meanwhile"
    text += f"\n  {typed}\n      goes on, once there is room"
    if needed_gib == NEEDED_CUDA_GIB:
        text += f"\n  PIP_EXTRA_INDEX_URL={CPU_WHEELS} {typed}"
        text += f"\n      is for CPU only, and needs {NEEDED_CPU_GIB} GiB"
    return SetupError(text)


def check_disk(pip_settings: list[str], typed: str) -> None:
    """Before gigabytes are fetched, see that there is room, and say if they could be fewer.

    Raises:
        SetupError: there is no room.
    """
    from_cpu_index = any("whl/cpu" in line for line in pip_settings)
    no_driver = not Path("/proc/driver/nvidia/version").exists() and not shutil.which("nvidia-smi")
    if no_driver and not from_cpu_index and platform.machine() == "x86_64":
        say(
            "no NVIDIA driver here, yet PyPI's torch for Linux x86 brings ~3 GB of CUDA libraries;"
            f" PIP_EXTRA_INDEX_URL={CPU_WHEELS} avoids that"
        )
    needed_gib = NEEDED_CPU_GIB if from_cpu_index else NEEDED_CUDA_GIB
    if free_gib(VENV) < needed_gib:
        raise disk_full(typed, needed_gib)


def explain(lines: list[str], doing: str, typed: str) -> SetupError:
    """From the output of what failed, what is wrong. Its end counts: pip outlives some errors."""
    end_of_output = "\n".join(lines[-20:])
    # venv keeps the output of its pip to itself; but a full disk is still full then.
    full = min(free_gib(ROOT), free_gib(tempfile.gettempdir())) * 1024 < 1
    if full or DISK_FULL.search(end_of_output):
        return disk_full(typed)
    if NO_NETWORK.search(end_of_output):
        return SetupError(
            f"no network: pip cannot reach its package index ({LOG})\n  {typed}\n"
            "      tries again; PIP_INDEX_URL=URL before it names a mirror, PIP_FIND_LINKS=DIR a"
            " folder of wheels"
        )
    errors = [line for line in lines if line.startswith(("ERROR:", "Error:"))]
    last = (errors or [line for line in lines if line.strip()] or ["no output"])[-1]
    return SetupError(f"{doing} failed: {last.strip()}\n  less {shlex.quote(str(LOG))}")


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
        if brings_torch(markers):
            check_disk(run_logged([*pip, "config", "list"], log, progress)[1], typed)
        say(f"installing what is pinned (log: {LOG})")
        requirements = f"requirements{'-' + extra if extra else ''}.txt"
        command = [*pip, "install", "-r", str(ROOT / requirements)]
        status, lines = run_logged(command, log, progress)
        if status:
            INSTALLING.write_text(PIP_ENDED)
            raise explain(lines, "pip install", typed)
    for marker, text in markers.items():
        INSTALLING.write_text(text)
        INSTALLING.replace(marker)


def explain_os_error(error: OSError, typed: str) -> SetupError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(typed)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return SetupError(
            f"cannot write .venv in {ROOT} ({error.strerror}). Clone to where you can write, or:\n"
            f"  AIRLOCK_PYTHON=PATH {typed}\n      uses a Python that has all that is needed"
        )
    return SetupError(f"cannot make .venv: {error}")


def interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(extra: str, *command: str) -> int:
    typed = shlex.join(command)
    signal.signal(signal.SIGTERM, interrupt)
    # A shell that is ended while it waits for this process would leave it installing.
    die_with_parent(signal.SIGTERM)
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
