"""The location of the gate, and the detection of file systems whose locks do not exclude."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch.start.gate import folder as module
from launch.start.gate.folder import check_gate, gate_folder
from rundir.errors import UserError
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("a link", "it is a link or a file"),
        ("a file", "File exists"),
        ("open to others", "others may write to it .mode 777"),
        ("another user's", "it belongs to the user 65534, not to 0"),
    ],
)
def test_a_gate_folder_that_is_not_ours_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, why: str
) -> None:
    path = tmp_path / "folder"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "a file":
        path.touch()
    else:
        path.mkdir(mode=0o700)
    if kind == "open to others":
        path.chmod(0o777)
    if kind == "another user's":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(path, 65534, 65534)
    monkeypatch.setenv("AIRLOCK_GATE_DIR", str(path))
    with pytest.raises(UserError, match=f"the gate cannot use {path}: .*{why}") as raised:
        gate_folder()
    assert raised.value.code == 4


def test_the_folder_is_the_same_in_every_session_and_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRLOCK_GATE_DIR", raising=False)
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):  # a login has the one, a job may have the other
        monkeypatch.setenv(name, str(tmp_path))
    assert gate_folder() == Path(f"/tmp/airlock-{os.getuid()}")  # noqa: S108
    assert gate_folder().stat().st_mode & 0o777 == 0o700


# As on some network filesystems: flock always succeeds.
_NO_EXCLUSION = """
import fcntl
fcntl.flock = lambda *_: None
from launch.start.gate.folder import check_gate
check_gate()
"""


def test_a_folder_in_which_locks_are_void_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _NO_EXCLUSION],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "AIRLOCK_GATE_DIR": str(tmp_path / "gate")},
    )
    assert done.returncode != 0
    assert "two processes could hold the same lock in it at once" in done.stderr


def test_a_network_filesystem_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # None can be mounted here.
    monkeypatch.setattr(module, "filesystem_of", lambda _: "nfs4")
    monkeypatch.setenv("AIRLOCK_GATE_DIR", str(tmp_path / "gate"))
    with pytest.raises(UserError, match=r"on a network filesystem \(nfs4\)"):
        check_gate()
