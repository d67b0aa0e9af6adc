"""Every form: what is trained, or the error, and that the error's advice works when followed.

The forms are in *.toml beside this file, and in files.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from launch.config.resolve import resolve
from rundir.errors import UserError
from tests.train.data.test_prepare_data import cache
from tests.train.forms import files
from tests.train.forms.form import TEMPLATE, Form
from train.data.dataset import SampleFile, marked
from train.data.path_samples import prepare_path
from train.data.samples import Recipe
from train.model.make_checkpoint import byte_tokenizer

__all__ = ["cache"]  # a fixture

TABLES = sorted(Path(__file__).parent.glob("*.toml"))
ALL = files.FORMS + [
    Form(**form)
    for table in TABLES
    for form in tomllib.loads(table.read_text(encoding="utf-8"))["form"]
]
_SETTING = re.compile(r"--set data\.(\w+)=(\S+)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model's folder, as far as data preparation reads it."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer: Any = byte_tokenizer()  # type: ignore[no-untyped-call]
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 260}), encoding="utf-8")
    return folder


def written(form: Form, folder: Path) -> Path:
    """Write the form's file."""
    path = folder / form.file
    path.write_bytes(form.rows if isinstance(form.rows, bytes) else form.rows.encode())
    return path


def trained(path: Path, model: Path, settings: dict[str, Any]) -> list[str]:
    """Return every sample, with loss in brackets. Raises UserError."""
    recipe = Recipe(**{"max_seq_length": 4096, **settings})
    samples = SampleFile(prepare_path(path, model, recipe)[0])
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [marked(*samples[i], tokenizer=tokenizer) for i in range(len(samples))]


def followed(do: str, path: Path) -> tuple[Path, dict[str, str]]:
    """Follow the advice: run its command, if any, and return the path and the settings."""
    command = do.partition("   #")[0]
    settings = dict(_SETTING.findall(do))
    if not command.startswith("--set"):
        command = command.partition(", if that")[0].replace("FILE", f"'{path}'")
        before = set(path.parent.iterdir())
        typed = ["bash", "-c", command]
        done = subprocess.run(typed, cwd=path.parent, capture_output=True, text=True, check=True)
        assert len(done.stdout) < 10_000  # a terminal is no place for more
        made = set(path.parent.iterdir()) - before
        assert made or done.stdout.strip(), "it makes a file, or shows the row"
        path = next(iter(made), path)
    return path, settings


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("form", ALL, ids=str)
def test_it_is_trained_as_it_should_be_or_refused_with_advice_that_works(
    form: Form, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(form, tmp_path)
    if form.trained is not None:
        assert trained(path, model, form.settings) == form.trained
        said = capsys.readouterr().out
        unused = re.search(r"not used: ([^;\n]*)", said)
        assert (unused.group(1) if unused else "") == form.unused
        return
    with pytest.raises(UserError, match=re.escape(form.error)) as raised:
        trained(path, model, form.settings)
    assert raised.value.do
    if form.then is not None:
        path, settings = followed(raised.value.do, path)
        resolve("tiny", [f"data.{key}={value}" for key, value in settings.items()], {})  # are known
        assert trained(path, model, form.settings | settings) == form.then
