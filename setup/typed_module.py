"""The answer to `python -m MODULE` typed outside an environment that has what it needs.

Standard library only, in the syntax of Python 3.6, as in missing.py: this runs before anything else
is imported, with whatever Python was typed.
"""

import os
import shlex
import sys
from importlib.util import find_spec

from setup.missing import PREFLIGHT_FAILED, ROOT, missing_packages, python_fits, required_python

_TO_BEGIN_WITH = ("click", "rich", "psutil", "filelock", "pynvml")  # the rungs report what else


def leave_if_incomplete(module: str) -> None:
    """Exit with 4, saying what to activate, if this Python lacks packages to begin `module`."""
    if python_fits(required_python()) and all(map(find_spec, _TO_BEGIN_WITH)):
        return
    lines = [f"airlock: {sys.executable} lacks: {', '.join(missing_packages(['train']))}"]
    is_rung = module.startswith("diagnostics.")
    args = [] if is_rung else sys.argv[1:]  # while a rung's module is looked for, not known
    activate, made = ROOT / ".venv/bin/activate", ", made on first use"
    if activate.is_file():
        typed, made = " ".join(map(shlex.quote, ["python", "-m", module, *args])), ""
        lines.append(f". {shlex.quote(str(activate))} && {typed}   # activates Airlock's own")
    words = ["start.sh", *args]
    if is_rung:
        words = ["airlock", "check", module.partition(".")[2]]
    elif (ROOT / f"setup/help/{''.join(args[:1])}.txt").is_file():  # the name of a command
        words[0] = "airlock"
    by_script = " ".join(shlex.quote(word) for word in [str(ROOT / words[0]), *words[1:]])
    is_in_other = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    own = "AIRLOCK_ENV=own " if is_in_other else ""
    lines.append(f"{own}{by_script}   # the same, in Airlock's own environment{made}")
    sys.stderr.write("\n  → ".join(lines) + "\n")
    sys.exit(PREFLIGHT_FAILED)


def leave_unless_complete() -> None:
    """Exit with 4, saying what to activate, if a rung was typed with a Python that lacks packages.

    While Python looks for the module of `python -m MODULE`, its package is imported.
    """
    words = list(getattr(sys, "orig_argv", []))  # from Python 3.10 on
    if not words:
        with open("/proc/self/cmdline", encoding="utf-8") as file:  # noqa: PTH123
            words = file.read().split("\0")
    module = words[words.index("-m") + 1] if "-m" in words else ""
    if module.startswith("diagnostics."):
        leave_if_incomplete(module)
