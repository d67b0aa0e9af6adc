"""The answer to `python -m MODULE` typed outside an environment that has what it needs.

Standard library only, in the syntax of Python 3.6, as in check.py: this runs before anything else
is imported, with whatever Python was typed.
"""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from setup.check import (
    PREFLIGHT_FAILED,
    ROOT,
    missing_packages,
    python_fits,
    required_python,
)

_HELP = ROOT / "setup/help"  # a file for each command
_TO_BEGIN_WITH = ("click", "rich", "psutil", "filelock", "pynvml")  # the rungs report what else


def typed_module() -> str:
    """Return NAME of `python -m NAME`, or "" if this process was not started with `-m`.

    While Python looks for that module, its package is imported, and argv[0] is "-m".
    """
    if sys.argv[:1] != ["-m"]:
        return ""
    words = list(getattr(sys, "orig_argv", []))  # from Python 3.10 on
    if not words:
        words = Path("/proc/self/cmdline").read_text(encoding="utf-8").split("\0")
    return words[words.index("-m") + 1] if "-m" in words else ""


def what_to_activate(module: str) -> str:
    """Return what this Python lacks to begin with `module` and what to type instead, or ""."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = required_python(pyproject)
    if not python_fits(sys.version_info[:3], needed):
        lacks = "is Python {}.{}.{}".format(*sys.version_info[:3]) + f", and {needed} is needed"
    elif any(find_spec(name) is None for name in _TO_BEGIN_WITH):
        lacks = f"lacks: {', '.join(missing_packages(pyproject, ''))}"
    else:
        return ""
    lines = [f"airlock: {sys.executable} {lacks}"]
    activate, made = ROOT / ".venv/bin/activate", ", made on first use"
    if activate.is_file():
        made = ""
        words = ["python", "-m", module, *_arguments(module)]
        typed = f". {shlex.quote(str(activate))} && {' '.join(map(shlex.quote, words))}"
        lines.append(f"  → {typed}   # activates Airlock's own environment")
    is_in_other = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
    own = "AIRLOCK_ENV=own " if is_in_other else ""
    lines.append(f"  → {own}{_by_script(module)}   # the same, in that environment{made}")
    return "\n".join(lines)


def _arguments(module: str) -> "list[str]":
    """Return what was typed behind the module: while a rung's is looked for, it is not known."""
    return [] if module.startswith("diagnostics.") else sys.argv[1:]


def _by_script(module: str) -> str:
    """Return the command that chooses an environment itself and then does what the module does."""
    words = ["airlock", "check", module.partition(".")[2]]
    if "." not in module:
        args = _arguments(module)
        is_command = module == "launch" and (_HELP / f"{''.join(args[:1])}.txt").is_file()
        words = ["airlock" if is_command else "start.sh", *args]
    return " ".join(shlex.quote(word) for word in [str(ROOT / words[0]), *words[1:]])


def leave_if_incomplete(module: str) -> None:
    """Exit with 4, saying what to activate, if this Python lacks packages to begin `module`."""
    advice = what_to_activate(module)
    if advice:
        sys.stderr.write(advice + "\n")
        sys.exit(PREFLIGHT_FAILED)


def leave_unless_complete() -> None:
    """Exit with 4, saying what to activate, if a rung was typed with a Python that lacks packages.

    The doctor, in the same package, needs few of them and is left alone.
    """
    module = typed_module()
    if not module.startswith("diagnostics.") or module.startswith("diagnostics.doctor"):
        return
    leave_if_incomplete(module)
