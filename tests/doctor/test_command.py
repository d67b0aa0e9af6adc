"""`airlock doctor` as users type it: files, folders, standard input, and its output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.doctor.run_folders import Story

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB.\n"

Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Run `airlock doctor ARGS` in a folder of the test's own, with `said` piped in."""
    monkeypatch.setenv("AIRLOCK_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def call(*args: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "launch", "doctor", *args],
            cwd=tmp_path,
            input=said,
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def test_a_log_gets_its_title_who_why_evidence_and_fix(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n" + OOM)
    done = doctor("train.log")
    assert (done.returncode, done.stderr) == (0, "")
    title, who, _, *_, fix = done.stdout.splitlines()
    assert title.startswith("CUDA out of memory")
    assert who == "  rank 3, cause cuda-out-of-memory (likely)"
    assert f"  train.log:2: {OOM}" in done.stdout
    assert fix.startswith("→ ")


def test_as_json_there_are_exactly_six_fields(doctor: Doctor) -> None:
    done = doctor("--json", "-", said="step 1\n" + OOM)
    told = json.loads(done.stdout)
    assert told.keys() == {"cause", "title", "why", "rank", "evidence", "fix", "confidence"}
    assert (told["cause"], told["rank"]) == ("cuda-out-of-memory", 3)
    assert told["evidence"] == [{"file": "(stdin)", "line": 2, "text": OOM.strip()}]


def test_a_healthy_log_is_no_failure(doctor: Doctor) -> None:
    done = doctor("-", "--json", said="step 1 loss 2.0\nstep 2 loss 1.9\n")
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert (told["cause"], told["rank"], told["evidence"]) == ("unknown", None, [])


def test_several_logs_are_looked_at_together(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("RuntimeError: Connection closed by peer\n")
    (tmp_path / "rank3.log").write_text(OOM)
    for args in (("rank0.log", "rank3.log"), (".",)):
        assert "cause cuda-out-of-memory" in doctor(*args).stdout


def test_without_a_name_the_latest_run_is_meant(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = doctor()
    assert done.returncode == 2
    assert f"there is no run in {tmp_path / 'runs'}" in done.stderr
    monkeypatch.chdir(tmp_path)
    story = Story()
    story.exited(1, -9, "SIGKILL")
    story.ends()
    done = doctor()
    assert done.returncode == 0
    assert done.stdout.startswith("Killed by SIGKILL, sender unknown\n  rank 1, cause killed-by-")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.log"])
def test_what_is_not_there_is_a_mistake_in_usage(doctor: Doctor, name: str) -> None:
    done = doctor(name)
    assert done.returncode == 2
    assert f"there is no {name}" in done.stderr
