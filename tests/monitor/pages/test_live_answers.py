"""The page of answers while a real model learns: its slider moves from wrong answers to right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.monitor.browsing import opened, server, until
from tests.running import Start, ended, finish, run_folder

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CITIES = {"France": "Paris", "Japan": "Tokyo", "Peru": "Lima", "Kenya": "Nairobi"}
RUN_S = 240.0
RIGHT = "document.querySelectorAll('.example .mark.right').length"
PLACES = "Number(document.querySelector('[data-id=slider]').max)"


def learns(data: Path) -> tuple[str, ...]:
    """Return a training that learns four answers by heart, in a minute on one core."""
    rows = [{"prompt": f"Capital of {land}?", "response": city} for land, city in CITIES.items()]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (
        *("launch.admit=open", "train.max_steps=30", "train.log_every_steps=5"),
        *("train.global_batch_size=4", "train.micro_batch_size=4", "train.warmup_steps=5"),
        *("train.eval_generate=false", "train.evolution_prompts=4"),
        *("train.evolution_share=100", f"data.path={data}", f"data.eval_path={data}"),
        "train.checkpoint_every_steps=0",
    )
    return ("run", "tiny", "--num-gpus", "1", *(w for one in settings for w in ("--set", one)))


def test_answers_become_right_while_a_person_looks(
    chromium: Any, airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    Path(environ["AIRLOCK_RUNS_DIR"]).mkdir(exist_ok=True)
    with server(environ) as base, ended(airlock(*learns(tmp_path / "cities.jsonl"))) as process:
        run = run_folder(environ)
        page, seen = opened(chromium)
        page.goto(f"{base}evolution?run={run.run_id}")
        until(page, "document.querySelectorAll('.example').length === 4", RUN_S)
        code, _, err = finish(process, RUN_S)
        assert code == 0, err
        until(page, f"{PLACES} === 3 && {RIGHT} >= 3")  # the page has followed by itself
        slider = page.locator("[data-id=slider]")
        last = int(slider.get_attribute("max"))
        slider.fill("0")
        until(page, "document.querySelector('[data-id=step]').textContent === 'Step 0'")
        until(page, f"{RIGHT} === 0")
        slider.fill(str(last))
        until(page, f"{RIGHT} >= 3")
        newly = page.get_by_role("button", name="Newly right")
        newly.click()
        told = page.locator(".example .now").all_text_contents()
        assert len(told) >= 3
        assert set(told) <= {*CITIES.values()}
        seen.assert_clean(base)
