"""`./start.sh tiny`, complete and real: it trains, it learns, and leaves what it says it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rundir.events import read_events
from rundir.paths import RunDir
from rundir.status import read_status
from tests.conftest import ROOT
from tests.running import assert_nothing_left, events_of
from tests.tensorboard_files import scalars

# Loads the exported folder as any user would, and answers three held-out prompts.
ANSWER = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
answers = []
for prompt in sys.argv[2:]:
    ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}],
                                        add_generation_prompt=True, return_tensors="pt")
    ids = ids["input_ids"] if hasattr(ids, "keys") else ids
    out = model.generate(ids, max_new_tokens=16, do_sample=False)
    answers.append(tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> tuple[RunDir, subprocess.CompletedProcess[str]]:
    """Do one whole run, of a clone with spaces in its path, as a user does it.

    It is started in a folder that has a train.py and a launch/ of its own.
    """
    clone = tmp_path_factory.mktemp("a clone with spaces")
    listed = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    folder = tmp_path_factory.mktemp("a folder of the user's")
    (folder / "train.py").write_text("raise SystemExit('the wrong train')")
    (folder / "launch").mkdir()
    (folder / "launch" / "__init__.py").write_text("raise SystemExit('the wrong launch')")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AIRLOCK_") and k != "NUM_GPUS"}
    process = subprocess.run(
        [clone / "start.sh", "tiny"],
        cwd=folder,
        env=kept | {"AIRLOCK_PYTHON": sys.executable, "AIRLOCK_CACHE_DIR": str(shared_cache)},
        text=True,
        capture_output=True,
        timeout=280,
        check=False,
    )
    return RunDir((clone / "runs" / "latest").resolve()), process


Finished = tuple[RunDir, "subprocess.CompletedProcess[str]"]


def test_it_exits_with_0_and_leaves_no_process(finished: Finished) -> None:
    run, process = finished
    assert process.returncode == 0, process.stdout + process.stderr
    assert_nothing_left(run)


def test_exact_match_on_held_out_prompts_rises_from_about_nothing_to_95_percent(
    finished: Finished,
) -> None:
    run, _ = finished
    evaluations = events_of(run, "metric", "eval")
    assert evaluations[0]["step"] == 0
    assert evaluations[0]["exact_match"] < 0.05
    assert evaluations[-1]["exact_match"] >= 0.95
    assert evaluations[-1]["loss"] < evaluations[0]["loss"] / 10


def test_tensorboard_has_all_that_was_measured(finished: Finished) -> None:
    run, _ = finished
    shown = scalars(run.tensorboard)
    for tag, events in (
        ("train/loss", events_of(run, "metric", "train")),
        ("eval/loss", events_of(run, "metric", "eval")),
    ):
        assert [(step, t) for step, t, _ in shown[tag]] == [(e["step"], e["t"]) for e in events]
        assert [loss for *_, loss in shown[tag]] == pytest.approx([e["loss"] for e in events])
    assert shown["eval/exact_match"][-1][2] >= 0.95
    assert shown["host/pss_bytes"]
    assert shown["time/forward_s"][-1][2] > 0


def test_the_exported_model_loads_anywhere_and_answers_rightly(finished: Finished) -> None:
    run, _ = finished
    lines = (ROOT / "examples/tiny/heldout.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    snapshot = json.loads(sorted(run.path.glob("evolution/*/*.json"))[-1].read_text())
    right = {example["input"] for example in snapshot["examples"] if example["exact_match"]}
    asked = [row for row in rows if row["prompt"] in right][:3]
    process = subprocess.run(
        [sys.executable, "-c", ANSWER, run.model, *(row["prompt"] for row in asked)],
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[str] = json.loads(process.stdout.splitlines()[-1])
    assert answers == [row["response"] for row in asked]


def test_each_rank_says_its_lines_in_order(finished: Finished) -> None:
    run, process = finished
    for rank in (0, 1):
        starts = [
            f"[Rank {rank}] {text}"
            for text in (
                "INIT: rank=",
                "MEM:START rss=",
                "LOCK: waiting for exclusive access...",
                "LOCK: acquired! Starting initialization...",
                "MEM:POST-IMPORT rss=",
                "MEM:POST-MODEL rss=",
                "LOCK: released",
            )
        ]
        for text in (process.stdout, run.rank_log(rank, 0).read_text()):
            own = [line for line in text.splitlines() if line.startswith(f"[Rank {rank}]")]
            # On a busy machine ranks also tell of held-out data that take long.
            said = [line for line in own if " EVAL: " not in line and " EVOLUTION: " not in line]
            if not any("waiting" in line for line in said):
                starts = [start for start in starts if "waiting" not in start]
            assert len(said) == len(starts)
            for line, start in zip(said, starts, strict=True):
                assert line.startswith(start)
        assert said[0] == f"[Rank {rank}] INIT: rank={rank}/2 local_rank={rank}"


def test_the_zygote_had_left_the_gate_before_the_first_rank_went_in(finished: Finished) -> None:
    run, _ = finished
    ends = [event["mono"] for event in events_of(run, "end", "lock.hold") if event["rank"] is None]
    starts = [event["mono"] for event in events_of(run, "start", "lock.hold") if event["rank"]]
    assert len(ends) == 1
    assert ends[0] <= min(starts)


def test_memory_was_marked_at_each_stage_and_the_imports_were_paid_for_once(
    finished: Finished,
) -> None:
    run, _ = finished
    anon: dict[int | None, list[int]] = {}
    for name in ("start", "post_import", "post_model"):
        for event in events_of(run, "mark", f"mem.{name}"):
            anon.setdefault(event["rank"], []).append(event["pss_anon_bytes"])
    assert anon.keys() == {None, 0, 1}
    start, imported, loaded = anon[None]
    assert 0 < start < imported <= loaded
    for rank in (0, 1):
        assert len(anon[rank]) == 3
        # A page counts for a half while only the zygote shares it, later for less.
        assert max(anon[rank]) < 0.75 * imported


def test_the_summary_tells_what_a_person_wants_to_know(finished: Finished) -> None:
    run, process = finished
    summary = process.stdout[process.stdout.index("tiny: done in") :]
    for part in (
        "loss ",
        "→",
        "exact match",
        "tokens/s",
        "host memory   peak",
        f"{run.run_id}/model",
    ):
        assert part in summary
    assert summary.count("answer   ") == 3


def test_the_run_folder_holds_what_the_format_promises(finished: Finished) -> None:
    run, _ = finished
    for path in (
        "config.toml",
        "command.txt",
        "owner.json",
        "environment.json",
        "prepared.json",
        "status.json",
        "events/launch.jsonl",
        "events/agent.jsonl",
        "events/prepare.jsonl",
        "events/rank0.jsonl",
        "events/rank1.jsonl",
        "logs/agent.log",
        "logs/attempt0/rank0.log",
        "logs/attempt0/rank1.log",
        "control",
        "checkpoints/step_00000400/COMPLETE",
        "model/config.json",
        "evolution/heldout/step_00000000.json",
        "evolution/heldout/step_00000400.json",
    ):
        assert (run.path / path).exists(), path
    status: dict[str, Any] = read_status(run)
    assert (status["phase"], status["step"], status["exit_code"]) == ("done", 400, 0)
    assert [rank["phase"] for rank in status["ranks"]] == ["done", "done"]
    assert not list(run.path.rglob(".*")), "something temporary was left"
    names = {(event["kind"], event["name"]) for event in read_events(run.events)}
    assert {("metric", "host"), ("metric", "train"), ("end", "export")} <= names
