"""Runs that have ended well, as the inbox finds them, and an evaluation that takes no model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rundir.paths import RunDir
from tests.launch.run_folders import trained_run

BASE_LOSS = 5.0
# What `./airlock evaluate` does, with losses that stand in the model's folder.
EVALUATE = """
import json, sys
from pathlib import Path

_, model, *words = sys.argv[1:]
losses = json.loads((Path(model) / "losses.json").read_text())
named = [word.partition("=") for word in words[: words.index("--json")]]
assert all(Path(path).is_file() for _, _, path in named), named
sets = {
    name: {"loss": losses.get(name, losses["other"]), "exact_match": 0.5, "num_samples": 1}
    for name, _, path in named
}
with Path(sys.argv[0]).with_suffix(".log").open("a") as log:
    log.write(json.dumps([Path(model).name, sorted(sets)]) + "\\n")
print("a line of a library")
print(json.dumps({"sets": sets}))
"""


def evaluator(folder: Path) -> list[str]:
    """Return the command that stands in for `./airlock`; it notes what it is asked."""
    file = folder / "evaluate.py"
    file.write_text(EVALUATE, encoding="utf-8")
    return [sys.executable, str(file)]


def asked(command: list[str]) -> list[list[object]]:
    """Return each evaluation so far: the name of the model's folder, and the sets."""
    log = Path(command[-1]).with_suffix(".log")
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def model_with(folder: Path, losses: dict[str, float | None]) -> Path:
    """Make a model that has those losses, on sets by their names and on any `other`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(1 << 21))
    (folder / "losses.json").write_text(json.dumps({"other": BASE_LOSS} | losses), encoding="utf-8")
    return folder


def run_of(
    folder: Path, name: str, losses: dict[str, float | None], *, start: str | None, rows: int = 3
) -> RunDir:
    """Make a run on the set `name`, from `start` or the base beside it, with those losses after."""
    base = folder / "base"
    if not base.exists():
        model_with(base, {})
    begun = (f"model.path={start}",) if start else ()
    run = trained_run(folder / "runs" / f"20261120-221500-{name}-3f2a", *begun, base=base)
    model_with(run.model, losses)
    held_out = "".join(json.dumps({"text": f"{name} {row}"}) + "\n" for row in range(rows))
    if rows:
        (run.data / f"{name}.held_out.jsonl").write_text(held_out, encoding="utf-8")
    return run
