"""Report what the Python that runs this file lacks to run Airlock; exit with 0 if nothing, else 4.

    missing.py WHAT EXTRA COMMAND [ARGUMENTS...]

WHAT names this Python in the report; if it is empty, nothing is reported, and an environment of
Airlock's own is rejected. EXTRA is "dev" if the development tools are needed, else empty. COMMAND
and its arguments are what the user typed, to be repeated in the advice.

Standard library only, and nothing heavy is imported: versions come from the installed metadata. The
syntax stays within Python 3.6, so that its user reads that it is too old, not a SyntaxError.
"""

import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PREFLIGHT_FAILED = 4
TRAINING = ("run", "check", "data", "evaluate", "inbox", "plan", "preflight", "try", "push")


def required_python() -> str:
    """Return requires-python of pyproject.toml, without tomllib, which an old Python lacks."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (needed,) = re.findall(r'^requires-python\s*=\s*"([^"]*)"', pyproject, re.MULTILINE)
    return str(needed)


def python_fits(needed: str) -> bool:
    """Return whether this Python is within NEEDED, of the form ">=3.11,<3.14" and no other."""
    for bound in needed.split(","):
        limit = tuple(int(part) for part in bound.lstrip("<>=").split("."))
        if (sys.version_info[:3] < limit) == bound.startswith(">="):
            return False
    return True


def groups_for(extra: str, command: "tuple[str, ...]") -> "list[str]":
    """Return the groups of packages in pyproject.toml that a command needs, besides those of all.

    COMMAND is what was typed: a start script or airlock, and its arguments. A script of the user's
    own needs torch; whatever else it needs is its own matter.
    """
    if extra:
        return ["train", extra]
    program, *words = command
    name = Path(program).name
    if name == "airlock":
        name, *words = words or ["--help"]
        if name not in TRAINING:
            return []
    if name in ("run", "start.sh", "start_single.sh", "start_4gpu.sh") and _names_script(words):
        return ["script"]
    return ["train"]


def _names_script(words: "list[str]") -> bool:
    """Return whether a script or a module is to be run, as launch/config/script_request.py would.

    Words after the name are the script's own.
    """
    for word in words:
        if word == "-m" or word.endswith(".py"):
            return True
        if (ROOT / "profiles" / (word + ".toml")).is_file():
            return False
    return False


def missing_packages(groups: "list[str]") -> "list[str]":
    """Return the requirements, those of GROUPS included, that are missing or of an older version.

    A Python that is out of range itself is all that is named then.
    """
    needed = required_python()
    if not python_fits(needed):
        return ["python {}.{}.{} (needs {})".format(*sys.version_info[:3], needed)]
    # Not at the top: a Python before 3.11 loads this file too.
    import tomllib
    from importlib import metadata

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project.get("optional-dependencies", {})
    wanted = [one for group in groups for one in optional.get(group, [])]
    missing = []
    for requirement in [*project["dependencies"], *wanted]:
        name, *bounds = re.split("(?=[<>=])", requirement, maxsplit=1)
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(requirement + " (not installed)")
            continue
        if not all(_fits(version, bound) for part in bounds for bound in part.split(",")):
            missing.append(requirement + " (" + version + " is installed)")
    return missing


def _fits(version: str, bound: str) -> bool:
    """Return whether a version is within BOUND, ">=A" or "<A".

    Pre-releases count: vendors' containers ship torch 2.12.0a0+hash.
    """
    limit = tuple(int(part) for part in bound.lstrip("<>=").split("."))
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    return (numbers < limit) != bound.startswith(">=")


def explain(what: str, missing: "list[str]", typed: str) -> str:
    """Return the message for a Python that lacks MISSING, with commands to choose from.

    What is offered installs just that, and so changes no other package to another version.
    """
    lines = [f"airlock: {what} lacks:", *(f"  {item}" for item in missing), "Type:"]
    if not missing[0].startswith("python "):
        packages = " ".join(shlex.quote(item.partition(" (")[0]) for item in missing)
        lines.append(f"  {shlex.quote(sys.executable)} -m pip install {packages}")
        lines.append("      installs them into it, or:")
    leave = "unset AIRLOCK_PYTHON; " if what.startswith("AIRLOCK_PYTHON") else ""
    lines.append(f"  {leave}AIRLOCK_ENV=own {typed}")
    return "\n".join([*lines, "      uses Airlock's own environment, .venv, made on first use\n"])


def main(what: str, extra: str, *command: str) -> int:
    if not what and any(Path(sys.prefix).glob(".airlock-install*")):
        return PREFLIGHT_FAILED  # environment.sh found it incomplete
    missing = missing_packages(groups_for(extra, command))
    if missing and what:
        sys.stderr.write(explain(what, missing, " ".join(map(shlex.quote, command))))
    return PREFLIGHT_FAILED if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
