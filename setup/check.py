"""Report what the Python that runs this file lacks to run Airlock; exit with 0 if nothing, else 4.

    check.py MODE EXTRA COMMAND [ARGUMENTS...]

COMMAND and its arguments are what the user typed, to be repeated in the advice; EXTRA is "dev" if
the development tools are needed, else empty. MODE is one of:

- given: this Python was named in AIRLOCK_PYTHON; reports what it lacks and how to install it
- active: it is the active environment's; reports the same, and how to bypass it
- quiet: it is python3 from PATH; reports nothing, and rejects an environment of Airlock's own

Standard library only, and nothing heavy is imported: versions come from the installed metadata. The
syntax stays within Python 3.6, so that its user reads that it is too old, not a SyntaxError.
"""

import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PREFLIGHT_FAILED = 4


def required_python(pyproject: str) -> str:
    """Return the value of requires-python, found without tomllib, which an old Python lacks.

    Raises:
        ValueError: there is none.
    """
    requirement = re.search(r'^requires-python\s*=\s*"([^"]*)"', pyproject, re.MULTILINE)
    if not requirement:
        raise ValueError("pyproject.toml has no requires-python")
    return requirement.group(1)


def python_fits(version: "tuple[int, ...]", needed: str) -> bool:
    """Return whether VERSION is within NEEDED, of the form ">=3.11,<3.14"; no other operators."""
    for bound in needed.replace(" ", "").split(","):
        limit = tuple(int(part) for part in bound.lstrip("<>=").split("."))
        if version < limit if bound.startswith(">=") else version >= limit:
            return False
    return True


def missing_packages(pyproject: str, extra: str) -> "list[str]":
    """Return the [project] dependencies (and those of EXTRA) that are missing or out of range."""
    # Not at the top: a Python before 3.11 loads this file too.
    import tomllib
    from importlib import metadata

    project = tomllib.loads(pyproject)["project"]
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


def explain(mode: str, missing: "list[str]", typed: str, extra: str) -> str:
    """Return the message for an environment that lacks MISSING, with commands to choose from."""
    what, leave = f"the active environment {sys.prefix}", ""
    if mode == "given":
        what, leave = f"AIRLOCK_PYTHON={sys.executable}", "unset AIRLOCK_PYTHON; "
    lines = [f"airlock: {what} lacks:", *(f"  {item}" for item in missing)]
    if missing[0].startswith("python "):
        lines.append("Type this:")
    else:
        requirements = ROOT / f"requirements{'-' + extra if extra else ''}.txt"
        install = [sys.executable, "-m", "pip", "install", "-r", str(requirements)]
        lines += ["Type one of these:", f"  {' '.join(map(shlex.quote, install))}"]
        lines.append("      installs what is pinned into it")
    lines.append(f"  {leave}AIRLOCK_ENV=own {typed}")
    lines.append("      uses Airlock's own environment, .venv, made on first use")
    return "\n".join(lines)


def main(mode: str, extra: str, *command: str) -> int:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = required_python(pyproject)
    if mode == "quiet" and any(Path(sys.prefix).glob(".airlock-install*")):
        return PREFLIGHT_FAILED  # environment.sh found it incomplete

    if python_fits(sys.version_info[:3], needed):
        missing = missing_packages(pyproject, extra)
    else:
        missing = ["python {}.{}.{} (needs {})".format(*sys.version_info[:3], needed)]
    if missing and mode != "quiet":
        typed = " ".join(map(shlex.quote, command))
        sys.stderr.write(explain(mode, missing, typed, extra) + "\n")
    return PREFLIGHT_FAILED if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
