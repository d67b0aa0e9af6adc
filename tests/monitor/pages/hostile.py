"""A run whose name, figures and words are markup and scripts, wherever it can hold any."""

from __future__ import annotations

import json
import shutil
from typing import Any

from rundir.paths import RunDir
from tests.monitor.answers.made import HOSTILE
from tests.monitor.recorded import DATASET

EVIL = HOSTILE[1]
NAME = '<img src=x onerror="window.hit=1">'


def hostile_run(demo: RunDir) -> RunDir:
    """Make a copy of a run, and newer, with hostile texts in all that pages show."""
    run = RunDir(demo.path.parent / f"20990101-000000-{NAME}-0d3c")
    shutil.copytree(demo.path, run.path)
    told = json.loads(run.status.read_text())
    told |= {"run_id": run.run_id, "error": EVIL, "profile": EVIL, "exit_code": 10}
    run.status.write_text(json.dumps(told))
    with run.run_log.open("a") as log:
        log.write("".join(f"{one}\n" for one in HOSTILE))
    with run.config.open("a") as config:
        config.write(f"\n[more]\nevil = {json.dumps(EVIL)}\n")
    head = {"v": 1, "t": told["updated_t"], "mono": 1.0, "node": 0, "attempt": 0, "rank": 0}
    stall = {"kind": "mark", "name": "stall", "waiting": EVIL, "limit_s": 1}
    with_name = {"kind": "metric", "name": "eval.set", "set": EVIL, "step": 10, "loss": 1.0}
    with run.event_file("launch").open("a") as events:
        events.writelines(json.dumps(head | {"pid": 1} | one) + "\n" for one in (stall, with_name))
    incident = run.incidents / "incident-attempt0"
    incident.mkdir()
    (incident / "verdict.md").write_text(f"# run: {EVIL}\n\n**{EVIL}**\n\n{EVIL}\n\n→ {EVIL}\n")
    _spoil_answers(run)
    return run


def _spoil_answers(run: RunDir) -> None:
    for path in run.path.glob("evolution/*/step_*.json"):
        told = json.loads(path.read_text())
        for row, text in zip(told["examples"], HOSTILE, strict=False):
            row |= {"input": text, "model_output": text, "expected_output": text}
        path.write_text(json.dumps(told))
    answers = run.path / "evolution" / HOSTILE[0].replace("/", "|")
    (run.path / "evolution" / DATASET).rename(answers)
    (answers / "step_00000275.json").write_text(f'{{"{EVIL}')


def assert_harmless(page: Any) -> None:
    """Assert that nothing of it has run, or become an element of the page."""
    assert page.evaluate("window.hit") is None
    assert page.locator("main img, main script, main [onload], main [onerror]").count() == 0
