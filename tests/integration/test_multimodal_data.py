"""Real runs of a multimodal checkpoint on its kind of data: text is trained, images are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.multimodal import multimodal_folder
from tests.running import SHORT, User, events_of

# Of those that come with such models: it looks at the parts of each message.
TEMPLATE = """{%- for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}
{%- for part in m.content %}
{%- if part.type == 'image' or 'image' in part %}<image>
{%- elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% if m.role == 'assistant' %}<|end|>{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def row(asked: Any, answer: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **more}


TEXT = [
    row("what is it?", "a chair"),
    row([{"type": "text", "text": "and how many?"}], "four"),
    row("who?", "nobody", images=[]),
]
SHOWN = [
    "<|user|>what is it?<|assistant|>[[a chair<|end|>]]",
    "<|user|>and how many?<|assistant|>[[four<|end|>]]",
    "<|user|>who?<|assistant|>[[nobody<|end|>]]",
]
IN_A_PART = row([{"type": "image", "url": "a.png"}, {"type": "text", "text": "and?"}], "a table")
IN_A_COLUMN = row("<image>and this?", "a door", images=["b.png"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = multimodal_folder("gemma3", tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def options(folder: Path, model: Path, rows: Sequence[dict[str, Any]]) -> list[str]:
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    settings = {
        "model.path": model,
        "data.eval_path": "",
        "train.max_steps": 1,
        "train.global_batch_size": 3,
    }
    set_ = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return ["--data", str(data), "--num-gpus", "1", *set_]


def test_a_row_with_an_image_is_refused_with_its_line_before_anything_starts(
    user: User, model: Path
) -> None:
    given = options(user.folder, model, [*TEXT, IN_A_PART, *TEXT])
    done = subprocess.run(
        [ROOT / "start.sh", "tiny", *given],
        env=user.environ | {"AIRLOCK_PYTHON": sys.executable},
        text=True,
        capture_output=True,
        timeout=200,
        check=False,
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 5, said
    assert f"{user.folder}/data.jsonl:4: the row has a part of type 'image'" in said
    assert "in `messages[0].content`" in said
    assert "Airlock trains on text" in said
    runs = Path(user.environ["AIRLOCK_RUNS_DIR"])
    assert not runs.exists() or not list(runs.iterdir())


@pytest.mark.long
def test_rows_without_one_are_trained_with_a_template_that_has_images_in_it(
    user: User, model: Path
) -> None:
    skipping = ("--set", "data.on_bad_row=skip")
    rows = [*TEXT, IN_A_COLUMN]
    user.output_of(*SHORT, *options(user.folder, model, rows), *skipping)
    run = user.run()
    shown = (run.path / "data" / "samples.txt").read_text(encoding="utf-8")
    assert all(one in shown for one in SHOWN), shown
    assert "<image>" not in shown
    (step,) = events_of(run, "metric", "train", rank=0)
    assert step["step"] == 1
    assert (run.model / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE
