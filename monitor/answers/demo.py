"""Two runs to look at before anything has been trained: `airlock serve --demo`.

They are run folders like all others, with invented figures, and say so.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from monitor.answers import demo_events
from monitor.answers.demo_answers import PROMPTS, STEPS, examples
from rundir.config import DataConfig, LaunchConfig, ModelConfig, RunConfig, TrainConfig
from rundir.config_file import config_text
from rundir.exit_codes import ExitCode
from rundir.paths import RunDir
from rundir.status import RankStatus, Status, write_status

DATASET = "evolution_demo"
_SAID = "[Launch] This run is a demo: nothing was trained, all figures are invented."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demo:
    """One run of the demo."""

    ago_s: float  # when it ended
    mark: str  # the last part of its id
    lr: float
    steps: int
    learns: float  # how fast, beside the other
    code: ExitCode


_RUNS = (
    _Demo(
        ago_s=26_000, mark="0d3a", lr=3e-5, steps=1000, learns=0.4, code=ExitCode.INTERRUPTED_SAVED
    ),
    _Demo(ago_s=900, mark="0d3b", lr=1e-4, steps=2000, learns=1.0, code=ExitCode.DONE),
)


@contextmanager
def demo_folder() -> Iterator[Path]:
    """Yield a temporary folder with the demo's runs; it is removed at the end."""
    with TemporaryDirectory(prefix="airlock-demo-") as folder:
        demo_runs(Path(folder))
        yield Path(folder)


def demo_runs(folder: Path) -> None:
    """Write the demo's runs into `folder`, and point `latest` at the newest. Raises OSError."""
    now_t = time.time()
    for demo in _RUNS:
        run = _write(folder, demo, now_t)
    (folder / "latest").symlink_to(run.run_id)


def _write(folder: Path, demo: _Demo, now_t: float) -> RunDir:
    started_t = now_t - demo.ago_s - demo.steps * demo_events.STEP_S - 400
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started_t))
    run = RunDir(folder / f"{stamp}-demo-{demo.mark}")
    for path in (run.path, run.control, run.checkpoints, run.incidents):
        path.mkdir()
    log = demo_events.Log(started_t)
    demo_events.start_up(log)
    draw = random.Random(demo.mark)  # noqa: S311 - invented figures, the same each time
    end_s = demo_events.training(log, draw, steps=demo.steps, lr=demo.lr, learns=demo.learns)
    for step in STEPS:
        if step <= demo.steps:
            _snapshot(run, log, step, demo.learns)
    log.write(run)
    run.run_log.write_text(_SAID + "\n", encoding="utf-8")
    _configuration(run, demo)
    _status(run, demo, started_t, started_t + end_s)
    return run


def _snapshot(run: RunDir, log: demo_events.Log, step: int, learns: float) -> None:
    rows = examples(step, learns)
    correct = sum(row["exact_match"] for row in rows)
    at_s, cost_s = 350.0 + step * demo_events.STEP_S + 36, 6.2
    summary = {
        "avg_loss": sum(row["loss"] for row in rows) / len(rows),
        "accuracy": correct / len(rows),
        "similarity": sum(row["similarity"] for row in rows) / len(rows),
        "total_examples": len(rows),
        "correct": correct,
        "incorrect": len(rows) - correct,
    }
    path = run.evolution(DATASET, step)
    when = datetime.fromtimestamp(log.started_t + at_s, UTC).isoformat(timespec="seconds")
    snapshot = {
        "v": 2,
        "snapshot_id": path.stem,
        "training_step": step,
        "timestamp": when,
        "dataset": {"name": DATASET, "hash": "0de30de30de30de3"},
        "model_version": {
            "run": run.run_id,
            "step": step,
            "checkpoint": None,
            "base": "Qwen/Qwen2.5-32B",
        },
        "cost": {"seconds": cost_s, "run_seconds": at_s},
        "left_out_steps": [],
        "examples": rows,
        "summary": summary,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(snapshot, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    log.span("rank0", at_s, at_s + 0.01, "evolution", step=step)
    log.say(
        "rank0",
        at_s + 0.01,
        "metric",
        "evolution",
        step=step,
        loss=summary["avg_loss"],
        accuracy=summary["accuracy"],
        similarity=summary["similarity"],
        num_prompts=len(PROMPTS),
        time_s=cost_s,
    )


def _configuration(run: RunDir, demo: _Demo) -> None:
    config = RunConfig(
        profile="32b",
        model=ModelConfig(path="Qwen/Qwen2.5-32B", dtype="bfloat16", gradient_checkpointing=True),
        data=DataConfig(path=f"{DATASET}.jsonl", eval_path=f"{DATASET}.jsonl", max_seq_length=4096),
        train=TrainConfig(method="lora", max_steps=STEPS[-1], learning_rate=demo.lr),
        launch=LaunchConfig(num_ranks=demo_events.NUM_RANKS),
    )
    run.config.write_text(config_text(config, {}), encoding="utf-8")
    rate = "" if demo.lr == TrainConfig().learning_rate else f" --set train.learning_rate={demo.lr}"
    run.command.write_text(f"./start.sh 32b --name demo{rate}\n", encoding="utf-8")
    made_with = {"commit": None, "versions": {"airlock": "a demo, nothing was trained"}}
    run.made_with.write_text(json.dumps(made_with, indent=1) + "\n", encoding="utf-8")


def _status(run: RunDir, demo: _Demo, started_t: float, ended_t: float) -> None:
    is_done = demo.code == ExitCode.DONE
    ranks = [
        RankStatus(
            rank=rank,
            phase="done",
            pid=4001 + rank,
            rss_bytes=int(3.84 * (1 << 30)),
            pss_anon_bytes=int(3.2 * (1 << 30)),
            gpu_used_bytes=int(71.5 * (1 << 30)),
            last_event_t=ended_t,
        )
        for rank in range(demo_events.NUM_RANKS)
    ]
    status = Status(
        run_id=run.run_id,
        profile="32b",
        phase="done" if is_done else "interrupted",
        started_t=started_t,
        updated_t=ended_t,
        launch_pid=4000,
        step=demo.steps,
        total_steps=STEPS[-1],
        loss=demo_events.loss_at(demo.steps, demo.learns),
        lr=0.0 if is_done else demo.lr / 2,
        tokens_per_s=17_900.0,
        mfu=0.412,
        eta_s=0.0 if is_done else None,
        exit_code=int(demo.code),
        ranks=ranks,
    )
    write_status(run, status)
