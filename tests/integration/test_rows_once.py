"""Whole runs that are resumed with other settings, or end within a step: each row once an epoch.

The rows are counted by the tokens that the model of each rank is given.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from rundir.checkpoints import complete_checkpoints
from rundir.paths import RunDir
from rundir.prepared import read_prepared
from tests.running import SHORT, Start, as_options, ended, events_of, finish, hooked, run_folder

# Each rank writes the samples, and counts the labels, of each micro-batch before it computes it.
_NOTE = """
import json
inner = module.Trainer.gradients
def gradients(self, batches, num_labels):
    for batch in batches if num_labels else ():
        ends = batch.cu_seq_lens.tolist()
        ids = batch.input_ids.flatten().tolist()
        about = {
            "step": self._step,
            "samples": [ids[begin:end] for begin, end in zip(ends, ends[1:])],
            "num_labels": batch.num_label_tokens,
        }
        with (self._run.path / f"given{self._ranks.rank}.jsonl").open("a") as file:
            file.write(json.dumps(about) + "\\n")
    return inner(self, batches, num_labels)
module.Trainer.gradients = gradients
"""
_SETTINGS = as_options("data.eval_path=", "train.warmup_steps=0")
KINDS = ("prepared", "mixed", "streamed")


def row(name: str, number: int) -> dict[str, str]:
    return {"prompt": f"{name}{number}.", "response": "x" * (number % 7 + 1)}


def write(path: Path, num_rows: int) -> Path:
    rows = (row(path.stem, i) for i in range(num_rows))
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def data_of(kind: str, folder: Path) -> tuple[str, ...]:
    """Return options for data with 40 rows an epoch."""
    if kind == "mixed":
        mixed = write(folder / "a.jsonl", 28), write(folder / "b.jsonl", 24)
        return ("--data", str(mixed[0]), "--data", f"{mixed[1]}:0.5")
    streamed = ("--set", "data.streaming=true") if kind == "streamed" else ()
    return ("--data", str(write(folder / "a.jsonl", 40)), *streamed)


class Runs:
    """Real runs, one after another, in which each rank notes what it is given."""

    def __init__(self, airlock: Start, environ: dict[str, str], folder: Path) -> None:
        self._airlock, self._environ = airlock, environ
        self._env = hooked(environ, folder, "train.step.loop", _NOTE)

    def start(self, *args: str) -> tuple[int, str]:
        """Run to the end; return the exit code, and the output."""
        with ended(self._airlock(*args, env=self._env)) as process:
            code, out, err = finish(process)
        return code, out + err

    def trained(self, *args: str) -> RunDir:
        """Run to a good end; return the run's folder."""
        code, output = self.start(*args)
        assert code == 0, output
        return run_folder(self._environ)

    def resumed(self, run: RunDir, ranks: int, *settings: str) -> RunDir:
        """Resume a run on so many ranks, with these settings; return the folder."""
        changes = [word for setting in settings for word in ("--set", setting)]
        on_ranks = ("--num-gpus", str(ranks))
        return self.trained("run", "tiny", "--resume", run.run_id, *on_ranks, *changes)


@pytest.fixture
def runs(airlock: Start, environ: dict[str, str], tmp_path: Path) -> Runs:
    """Return what starts runs."""
    return Runs(airlock, environ, tmp_path)


def given(run: RunDir) -> tuple[dict[int, list[str]], int]:
    """Return the rows of each step (from 0), whichever rank had them, and the sum of all labels."""
    tokenizer = Tokenizer.from_file(f"{read_prepared(run).model_path}/tokenizer.json")
    steps: dict[int, list[str]] = {}
    num_labels = 0
    files = sorted(run.path.glob("given*.jsonl"))
    for about in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        texts = (tokenizer.decode(ids) for ids in about["samples"])
        named = (re.match(r"[ab]\d+(?=\.)", text) for text in texts)
        steps.setdefault(about["step"], []).extend(one[0] for one in named if one)
        num_labels += about["num_labels"]
    return dict(sorted(steps.items())), num_labels


def labels_of(names: Sequence[str]) -> int:
    """Return the labels of rows: those of the response, and of its end."""
    return sum(len(row(name[0], int(name[1:]))["response"]) + 1 for name in names)


def forget_position(run: RunDir) -> None:
    """Make the run's checkpoints those of a version that did not note the position."""
    for checkpoint in complete_checkpoints(run.checkpoints):
        file = checkpoint / "state.json"
        about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        del about["notes"]["position"]
        file.write_text(json.dumps(about), encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_comes_once_an_epoch_with_another_batch_on_2_then_1_then_3_ranks(
    runs: Runs, tmp_path: Path, kind: str
) -> None:
    data = data_of(kind, tmp_path)
    begin = ("--num-gpus", "2", "--set", "train.max_steps=3")  # of 8
    first = runs.trained(*SHORT, *_SETTINGS, *data, *begin)
    if kind == "prepared":
        forget_position(first)
    changed = ("train.global_batch_size=5", "train.seed=1", "data.shuffle_mib=8")
    second = runs.resumed(first, 1, *changed, "train.max_steps=7")
    changed = ("train.global_batch_size=7", "train.seed=2", "train.epochs=3")
    third = runs.resumed(second, 3, *changed, "train.max_steps=0")
    steps: dict[int, list[str]] = {}
    num_labels = 0
    for run in (first, second, third):
        rows, more = given(run)
        assert not steps.keys() & rows.keys()
        steps |= rows
        num_labels += more
    sizes = [8] * 3 + [5] * 4 + [7] * 10 + [6]
    assert [len(steps[step]) for step in range(len(steps))] == sizes
    every = [name for step in range(len(steps)) for name in steps[step]]
    assert num_labels == labels_of(every)
    # Epochs begin after 40 and after 80 rows: within the 7th and the 13th step.
    for whole in (range(6), range(7, 12), range(13, 18)):
        assert max(Counter(name for step in whole for name in steps[step]).values()) == 1
    times = Counter(every)
    if kind != "mixed":
        assert times == Counter({f"a{i}": 3 for i in range(40)})
    else:  # of b 12 rows an epoch
        assert {times[f"a{i}"] for i in range(28)} == {3}
        assert Counter(times[f"b{i}"] for i in range(24)) == {1: 12, 2: 12}
    (plan,) = events_of(third, "mark", "train.plan")
    assert (plan["first_step"], plan["total_steps"]) == (7, 18)


@pytest.mark.parametrize(
    ("kind", "num_rows", "ranks"),
    [
        ("prepared", 9, 3),
        pytest.param("streamed", 9, 3, marks=pytest.mark.long),
        pytest.param("prepared", 1, 2, marks=pytest.mark.long),
        pytest.param("streamed", 1, 2, marks=pytest.mark.long),
    ],
)
def test_the_last_step_of_an_epoch_has_the_rows_that_are_left_however_many_ranks_there_are(
    runs: Runs, tmp_path: Path, kind: str, num_rows: int, ranks: int
) -> None:
    data = ("--data", str(write(tmp_path / "a.jsonl", num_rows)))
    streamed = ("--set", f"data.streaming={str(kind == 'streamed').lower()}")
    epoch = (*as_options("train.max_steps=0", "train.epochs=1"), "--num-gpus", str(ranks))
    run = runs.trained(*SHORT, *_SETTINGS, *data, *streamed, *epoch)
    steps, num_labels = given(run)
    names = [f"a{i}" for i in range(num_rows)]
    assert [len(rows) for rows in steps.values()] == [8, 1][-(num_rows > 1) - 1 :]
    assert sorted(name for rows in steps.values() for name in rows) == names
    assert num_labels == labels_of(names)
    for mark in events_of(run, "mark", "data.streamed"):
        assert mark["num_rows"] == num_rows


@pytest.mark.long
def test_an_order_that_no_epoch_would_have_is_refused_and_what_to_type_is_right(
    runs: Runs, tmp_path: Path
) -> None:
    data = data_of("streamed", tmp_path)
    epoch = ("--set", "train.epochs=1")
    first = runs.trained(*SHORT, *_SETTINGS, *data, *epoch, "--set", "train.max_steps=2")
    again = ("run", "tiny", "--resume", first.run_id, "--set", "train.max_steps=0")
    code, output = runs.start(*again, "--set", "train.seed=1", "--set", "data.shuffle_mib=1")
    assert code == 5, output
    assert "train.seed is 1, it was 0, data.shuffle_mib is 1, it was 16" in output
    assert "would begin with epoch 2, and the run ends before, after 40 rows" in output
    assert "--set train.seed=0 --set data.shuffle_mib=16" in output
    assert "--set train.epochs=2" in output
    code, output = runs.start(*again, "--set", "train.seed=1", "--set", "train.seed=0")
    assert code == 0, output
    code, output = runs.start(*again, "--set", "train.seed=1", "--set", "train.epochs=2")
    assert code == 0, output
    assert "train.seed is 1, it was 0: from epoch 2 on" in output
    code, output = runs.start(*again, "--set", "train.seed=1", "--force")
    assert code == 0, output
    assert "it changes nothing" in output
