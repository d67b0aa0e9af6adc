"""What can go wrong while `.venv` is made, each in a line and with the next command to type.

Standard library only: it runs before there is anything else.
"""

import errno
import re
import shlex
import shutil
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / ".venv/install.log"

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


def explain_os_error(error: OSError, typed: str) -> SetupError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(typed)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return SetupError(
            f"cannot write .venv in {ROOT} ({error.strerror}). Clone to where you can write, or:\n"
            f"  AIRLOCK_PYTHON=PATH {typed}\n      uses a Python that has all that is needed"
        )
    return SetupError(f"cannot make .venv: {error}")
