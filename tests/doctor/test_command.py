"""`airlock doctor` as users type it: files, folders, standard input, and its output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.commands.cli import airlock
from tests.doctor.run_folders import Story
from tests.running import Typed

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 132.00 MiB.\n"


def test_a_log_gets_its_title_who_why_evidence_and_fix(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1\n" + OOM)
    code, out, err = typed("doctor", "train.log")
    assert (code, err) == (0, "")
    title, who, _, *_, fix = out.splitlines()
    assert title.startswith("CUDA out of memory")
    assert who == "  rank 3, cause cuda-out-of-memory (likely)"
    assert f"  train.log:2: {OOM}" in out
    assert fix.startswith("→ ")


def test_as_json_there_are_exactly_six_fields_and_a_healthy_log_is_no_failure() -> None:
    asks = CliRunner()
    verdict = json.loads(
        asks.invoke(airlock, ["doctor", "--json", "-"], input="step 1\n" + OOM).stdout
    )
    assert verdict.keys() == {"cause", "title", "why", "rank", "evidence", "fix", "confidence"}
    assert (verdict["cause"], verdict["rank"]) == ("cuda-out-of-memory", 3)
    assert verdict["evidence"] == [{"file": "(stdin)", "line": 2, "text": OOM.strip()}]
    healthy = asks.invoke(
        airlock, ["doctor", "-", "--json"], input="step 1 loss 2.0\nstep 2 loss 1.9\n"
    )
    assert healthy.exit_code == 0
    verdict = json.loads(healthy.stdout)
    assert (verdict["cause"], verdict["rank"], verdict["evidence"]) == ("unknown", None, [])


def test_several_logs_are_looked_at_together(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("RuntimeError: Connection closed by peer\n")
    (tmp_path / "rank3.log").write_text(OOM)
    for args in (("rank0.log", "rank3.log"), (".",)):
        assert "cause cuda-out-of-memory" in typed("doctor", *args)[1]


def test_without_a_name_the_latest_run_is_meant(typed: Typed, runs: Path) -> None:
    code, _, err = typed("doctor")
    assert code == 2
    assert f"there is no run in {runs}" in err
    story = Story()
    story.exited(1, -9, "SIGKILL")
    story.ends()
    code, out, _ = typed("doctor")
    assert code == 0
    assert out.startswith("Killed by SIGKILL, sender unknown\n  rank 1, cause killed-by-")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.log"])
def test_what_is_not_there_is_a_mistake_in_usage(typed: Typed, name: str) -> None:
    code, _, err = typed("doctor", name)
    assert code == 2
    assert f"there is no {name}" in err
