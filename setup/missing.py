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


def missing_packages(extra: str) -> "list[str]":
    """Return the [project] dependencies (and those of EXTRA) that are missing or out of range.

    A Python that is out of range itself is all that is named then.
    """
    needed = required_python()
    if not python_fits(needed):
        return ["python {}.{}.{} (needs {})".format(*sys.version_info[:3], needed)]
    # Not at the top: a Python before 3.11 loads this file too.
    import tomllib
    from importlib import metadata

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project.get("optional-dependencies", {}).get(extra, [])
    try:
        from packaging.requirements import Requirement
    except ImportError:
        # transformers and pytest need it as well, so an environment without it lacks them too.
        return ["packaging (not installed), which would tell what else"]
    missing = []
    for requirement in map(Requirement, wanted):
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(f"{requirement.name} (not installed)")
            continue
        # Pre-releases count: vendors' containers ship torch 2.12.0a0+hash.
        if not requirement.specifier.contains(version, prereleases=True):
            missing.append(f"{requirement.name} {version} (needs {requirement.specifier})")
    return missing


def explain(what: str, missing: "list[str]", extra: str, typed: str) -> str:
    """Return the message for a Python that lacks MISSING, with commands to choose from."""
    lines = [f"airlock: {what} lacks:", *(f"  {item}" for item in missing), "Type:"]
    if not missing[0].startswith("python "):
        requirements = shlex.quote(str(ROOT / f"requirements{'-' + extra if extra else ''}.txt"))
        lines.append(f"  {shlex.quote(sys.executable)} -m pip install -r {requirements}")
        lines.append("      installs what is pinned into it, or:")
    leave = "unset AIRLOCK_PYTHON; " if what.startswith("AIRLOCK_PYTHON") else ""
    lines.append(f"  {leave}AIRLOCK_ENV=own {typed}")
    return "\n".join([*lines, "      uses Airlock's own environment, .venv, made on first use\n"])


def main(what: str, extra: str, *command: str) -> int:
    if not what and any(Path(sys.prefix).glob(".airlock-install*")):
        return PREFLIGHT_FAILED  # environment.sh found it incomplete
    missing = missing_packages(extra)
    if missing and what:
        typed = " ".join(map(shlex.quote, command))
        sys.stderr.write(explain(what, missing, extra, typed))
    return PREFLIGHT_FAILED if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
