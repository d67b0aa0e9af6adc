"""Locks of builds that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.checks.earlier_runs import check_build_locks, find_locks
from rundir.finding import Finding
from tests.launch.checks.conftest import context

HOLD = """
import importlib.util, sys
from pathlib import Path
torch = Path(importlib.util.find_spec("torch").origin).parent  # it is not imported
spec = importlib.util.spec_from_file_location("file_baton", torch / "utils/file_baton.py")
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
assert module.FileBaton(sys.argv[1]).try_acquire()
print("held", flush=True)
input()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return the path where torch puts the lock of a build; it is not created yet."""
    path = tmp_path / ".cache/torch_extensions/py311_cpu/my_kernel/lock"
    path.parent.mkdir(parents=True)
    return path


def found(tmp_path: Path, **environ: str) -> Finding:
    (finding,) = check_build_locks(context(environ={"HOME": str(tmp_path)} | environ))
    return finding


def make_old(path: Path, age_s: float = 7200) -> None:
    os.utime(path, (time.time() - age_s,) * 2)


def test_a_lock_that_a_killed_build_has_left_is_a_warning_with_the_rm_command(
    tmp_path: Path, lock: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as builder:
        assert builder.stdout is not None
        builder.stdout.readline()
        make_old(lock)
        assert found(tmp_path).level == "ok"  # a long build that is still going on
        builder.kill()
    finding = found(tmp_path)
    assert finding.level == "warning"
    assert finding.warning.startswith(f"{lock} is 2:00:0")
    assert "whoever loads the extension my_kernel waits for it without end" in finding.warning
    assert finding.do == f"rm {lock}"


def test_a_new_lock_may_be_that_of_a_builder_on_another_machine(tmp_path: Path, lock: Path) -> None:
    lock.touch()
    assert found(tmp_path).level == "ok"


def test_locks_are_looked_for_where_torch_is_told_to_build(tmp_path: Path, lock: Path) -> None:
    lock.touch()
    make_old(lock)
    builds = str(lock.parent.parent)
    assert found(Path("/nowhere"), TORCH_EXTENSIONS_DIR=builds).level == "warning"
    assert found(tmp_path, TORCH_EXTENSIONS_DIR="/elsewhere").level == "ok"
    assert found(Path("/nowhere"), XDG_CACHE_HOME=str(tmp_path / ".cache")).level == "warning"


def test_torch_still_keeps_its_builds_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils import cpp_extension

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = Path(cpp_extension._get_build_directory("my_kernel", verbose=False))
    (folder / "lock").touch()
    assert find_locks({"XDG_CACHE_HOME": str(tmp_path)}) == [folder / "lock"]
