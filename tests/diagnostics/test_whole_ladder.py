"""The whole ladder, with its real rungs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launch.checks.rungs import NAMES
from tests.running import Start, Typed


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_rung_is_green_on_this_machine(airlock: Start, environ: dict[str, str]) -> None:
    process = airlock("check", "--json", env={"CUDA_VISIBLE_DEVICES": ""})
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    found = json.loads(out)
    assert [rung["rung"] for rung in found["rungs"]] == list(NAMES)
    assert all(rung["peak_rss_bytes"] > 0 for rung in found["rungs"])
    assert list(Path(environ["AIRLOCK_RUNS_DIR"]).iterdir()) == []


def test_a_red_finding_of_a_real_rung_is_the_ladders_line(typed: Typed) -> None:
    nowhere = "/proc/runs" if os.geteuid() == 0 else "/usr/runs"  # root may write to the latter
    env = {"AIRLOCK_RUNS_DIR": nowhere}
    code, out, err = typed("check", "environment", "--json", env=env)
    assert code == 4, out + err
    (rung,) = json.loads(out)["rungs"]
    assert rung["line"].startswith("disk: ")
    assert "AIRLOCK_RUNS_DIR=" in rung["do"]
