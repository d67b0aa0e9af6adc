"""The whole ladder, with its real rungs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launch.checks.rungs import NAMES
from tests.running import Start


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


def test_a_broken_package_ends_the_climb_where_it_is_imported(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "peft.py").write_text("raise ImportError('libcudart.so.99 is missing')")
    python_path = f"{environ['PYTHONPATH']}:{tmp_path}"
    process = airlock("check", "imports", "--json", env={"PYTHONPATH": python_path})
    out, err = process.communicate()
    assert process.returncode == 4, out + err
    (rung,) = json.loads(out)["rungs"]
    assert rung["line"] == "peft: ImportError: libcudart.so.99 is missing"
    assert "-m pip install -r" in rung["do"]
