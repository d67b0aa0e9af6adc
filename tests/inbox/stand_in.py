"""A stand-in for start.sh and airlock: it behaves like a training, in milliseconds.

    python -S tests/inbox/stand_in.py start.sh PROFILE --name NAME --data FILE …

The dropped file says what is to happen: JSON of {"steps": 3, "step_s": 0.01, "code": 0, …}; what
is no JSON ends like data that cannot be read. It writes what the inbox reads of a run: its folder,
with status.json, checkpoints and model. Only the standard library: hundreds are started.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any


class Run:
    """The folder of a run, as the inbox reads it."""

    def __init__(self, name: str, data: str) -> None:
        runs = Path(os.environ["AIRLOCK_RUNS_DIR"])
        stamp = time.strftime("%Y%m%d-%H%M%S")
        self.path = runs / f"{stamp}-{name}-{secrets.token_hex(2)}"
        self.path.mkdir()
        for record in ("config.toml", "prepared.json"):
            shutil.copyfile(Path(os.environ["STAND_IN_RECORDS"]) / record, self.path / record)
        (self.path / "dropped").write_text(data)
        self.status: dict[str, Any] = {"phase": "preparing", "step": 0, "exit_code": None}

    def write(self, **changes: Any) -> None:
        self.status |= changes
        new = self.path / ".status"
        new.write_text(json.dumps(self.status))
        new.replace(self.path / "status.json")

    def save(self, step: int) -> None:
        folder = self.path / "checkpoints" / f"step_{step:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "COMPLETE").touch()

    def end(self, code: int, **changes: Any) -> int:
        phase = {0: "done", 20: "interrupted", 21: "interrupted"}.get(code, "failed")
        self.write(phase=phase, exit_code=code, **changes)
        return code


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


def train(words: list[str]) -> int:
    if "broken=option" in words:
        print("airlock: there is no setting broken\n  → ./start.sh tiny", file=sys.stderr)
        return 2
    interrupts: list[bool] = []
    signal.signal(signal.SIGINT, lambda *_: interrupts.append(True))
    data, first = option(words, "--data"), 0
    if before := option(words, "--resume"):
        data = (Path(before) / "dropped").read_text()
        saved = sorted(path.name for path in (Path(before) / "checkpoints").iterdir())
        first = int(saved[-1].removeprefix("step_"))
    run = Run(option(words, "--name"), data)
    try:
        path = Path(data)
        file = path if path.is_file() else sorted(path.iterdir())[0]
        plan = json.loads(file.read_text(encoding="utf-8"))
        steps = int(plan["steps"])
    except (ValueError, KeyError, TypeError) as error:
        print(f"airlock: {data}: {error}", file=sys.stderr)
        return run.end(5, error=f"{type(error).__name__}: the data cannot be read")
    return steps_of(run, plan, range(first + 1, steps + 1), interrupts) or run.end(0)


def steps_of(run: Run, plan: dict[str, Any], steps: range, interrupts: list[bool]) -> int:
    """Train as planned; return the exit code, 0 if all went well."""
    for step in steps:
        time.sleep(plan.get("step_s", 0.0))
        run.write(phase="training", step=step, total_steps=steps[-1])
        if plan.get("save", True):
            run.save(step)
        if step == plan.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == plan.get("fail_at"):
            return run.end(10, error="ZeroDivisionError: a mistake")
        if plan.get("until") and Path(plan["until"]).exists():
            break
        if interrupts:
            return run.end(20 if plan.get("save", True) else 21)
    if code := plan.get("code", 0):
        return run.end(code, error="as asked")
    (run.path / "model").mkdir()
    (run.path / "model" / "config.json").write_text("{}")
    return 0


def airlock(words: list[str]) -> int:
    """The doctor, which knows one failure."""
    assert words[0] == "doctor", words
    status = json.loads((Path(words[1]) / "status.json").read_text())
    verdict = {"cause": "unknown", "title": "", "why": "", "fix": ""}
    if "mistake" in (status.get("error") or ""):
        verdict = {
            "cause": "a-mistake",
            "title": "A mistake",
            "why": "seen by the doctor",
            "fix": "mend",
        }
    print(json.dumps(verdict))
    return 0


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    sys.exit(train(rest) if program == "start.sh" else airlock(rest))
