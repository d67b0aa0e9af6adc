"""A script in an environment that has torch and what the launcher imports, and nothing more."""

from __future__ import annotations

import re
import subprocess
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import pytest

from rundir.errors import ExitCode
from tests.conftest import ROOT
from tests.running import User
from tests.scripts import JOIN, script

_WANTED = ("torch", "click", "filelock", "nvidia-ml-py", "psutil", "rich")
_SCRIPT = f"""{JOIN}
import importlib.util
lacking = [name for name in ("numpy", "transformers", "peft") if not importlib.util.find_spec(name)]
total = torch.ones(1)
dist.all_reduce(total)
print("sum", total.item(), *lacking, flush=True)
"""


def needed_by(names: tuple[str, ...]) -> set[str]:
    """Return these packages and all that they need, of those that are installed here."""
    known: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in known:
            continue
        try:
            requires = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        known.add(name)
        todo += [re.split(r"[^\w.-]", one)[0] for one in requires if "extra ==" not in one]
    return known


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Make an environment with links to these packages."""
    folder = tmp_path / "their env"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    own = Path(sysconfig.get_path("purelib"))
    for name in needed_by(_WANTED):
        files = metadata.files(name) or []
        for top in {Path(file).parts[0] for file in files} - {"..", "__pycache__", "bin"}:
            if (own / top).exists() and not (site / top).exists():
                (site / top).symlink_to(own / top)
    return folder


@pytest.mark.parametrize("start", ["warm", pytest.param("cold", marks=pytest.mark.long)])
def test_two_ranks_of_a_script_start_there_and_a_profile_says_what_it_lacks(
    user: User, bare: Path, start: str
) -> None:
    env = {name: value for name, value in user.environ.items() if name != "PYTHONPATH"}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "start.sh"), *words],
            cwd=user.folder,
            env=env | {"VIRTUAL_ENV": str(bare)},
            capture_output=True,
            text=True,
            check=False,
        )

    path = script(user.folder, _SCRIPT)
    done = typed("--num-gpus", "2", "--set", f"launch.start={start}", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sum 2.0 numpy transformers peft\n") == 2
    refused = typed("tiny")
    assert refused.returncode == ExitCode.PREFLIGHT
    assert "\n  transformers>=5 (not installed)\n" in refused.stderr
    assert "\n  click" not in refused.stderr
