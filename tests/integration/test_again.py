"""A run that is done again from its exported model, as a colleague does it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.running import SHORT, Start, finish, run_folder


def test_a_colleague_gets_the_same_model_from_its_folder(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    code, out, err = finish(airlock(*SHORT, "--set", "train.seed=5", "--num-gpus", "2"))
    assert code == 0, out + err
    first, model = run_folder(environ), tmp_path / "model"
    shutil.copytree(first.model, model)
    card = (model / "README.md").read_text("utf-8")
    assert f"./start.sh --again {first.run_id} --num-gpus 2" in card
    code, out, err = finish(airlock("run", "--again", str(model), "--num-gpus", "2"))
    assert code == 0, out + err
    assert f"the data are those of {model}" in out
    second = run_folder(environ)
    assert second.path != first.path
    one, other = (run.model / "model.safetensors" for run in (first, second))
    assert one.read_bytes() == other.read_bytes()
    code, _, err = finish(airlock("run", "14b", "--again", str(model)))
    assert (code, "is of the profile tiny, not 14b" in err) == (2, True)
    code, _, err = finish(airlock("run", "--again", str(model), "--resume", "latest"))
    assert (code, "--again starts anew" in err) == (2, True)
