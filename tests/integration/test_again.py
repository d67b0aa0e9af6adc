"""A run that is done again from its exported model, as a colleague does it."""

from __future__ import annotations

import shutil

from tests.running import SHORT, User


def test_a_colleague_gets_the_same_model_from_its_folder(user: User) -> None:
    user.output_of(*SHORT, "--set", "train.seed=5", "--num-gpus", "2")
    first, model = user.run(), user.folder / "model"
    shutil.copytree(first.model, model)
    card = (model / "README.md").read_text("utf-8")
    assert f"./start.sh --again {first.run_id} --num-gpus 2" in card
    out = user.output_of("run", "--again", str(model), "--num-gpus", "2")
    assert f"the data are those of {model}" in out
    second = user.run()
    assert second.path != first.path
    one, other = (run.model / "model.safetensors" for run in (first, second))
    assert one.read_bytes() == other.read_bytes()
    code, _, err = user.finish("run", "14b", "--again", str(model))
    assert (code, "is of the profile tiny, not 14b" in err) == (2, True)
    code, _, err = user.finish("run", "--again", str(model), "--resume", "latest")
    assert (code, "--again starts anew" in err) == (2, True)
