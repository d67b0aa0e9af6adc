"""Models as users have them: old pickles, and weights in another dtype than the training's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from launch.config.resolve import resolve
from rundir.paths import RunDir
from rundir.prepared import read_prepared
from tests.running import SHORT, User, as_options, assert_nothing_left, events_of
from train.model.make_checkpoint import make_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Make a model of float32 in safetensors."""
    make_checkpoint(resolve("tiny", [], {})[0], tmp_path / "model")
    return tmp_path / "model"


def losses(run: RunDir) -> list[float]:
    return [event["loss"] for event in events_of(run, "metric", "train")]


@pytest.mark.long
def test_an_old_pickle_is_read_by_one_process_and_its_cost_said(user: User, model: Path) -> None:
    def trained(*settings: str) -> tuple[str, list[float]]:
        options = [part for one in settings for part in ("--set", one)]
        out = user.output_of(*SHORT, "--set", f"model.path={model}", *options)
        return out, losses(user.run())

    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin", _use_new_zipfile_serialization=False)

    out, expected = trained("launch.start=cold")
    assert "weights: broadcast (pytorch_model.bin is an old pickle" in out
    assert "airlock: pytorch_model.bin is a pickle: each rank that reads it holds 3 MiB" in out
    assert len(expected) == 4
    assert read_prepared(user.run()).loading.load == "broadcast"

    out, found = trained()
    assert "weights: mmap, once for all ranks; should the start turn cold, broadcast (" in out
    assert events_of(user.run(), "mark", "start")[0]["start"] == "warm"
    assert found == expected


@pytest.mark.long
def test_a_warm_start_that_turns_cold_has_rank_0_read_for_all_where_that_is_cheaper(
    user: User, model: Path
) -> None:
    env = user.hooked(
        "train.worker",
        "from launch.start.rank import zygote\nif zygote.current:\n    raise ImportError('here')",
    )
    user.hooked(
        "train.model.loading",
        "module.make_room = lambda *args, do=module.make_room: (print('received'), do(*args))",
    )
    other_type = as_options(f"model.path={model}", "model.dtype=bfloat16")
    out = user.output_of(*SHORT, *other_type, env=env)
    assert "airlock: starting cold: ImportError: here" in out
    assert "should the start turn cold, broadcast (the weights are float32" in out
    run = user.run()
    assert "received" in run.rank_log(1, 0).read_text()
    assert_nothing_left(run)


# Rank 1 reads other files than rank 0, as on a node with an older copy of them.
_OTHER_FILES = """
load = module.load
def load_another(*args, **options):
    model = load(*args, **options)
    if os.environ["RANK"] == "1":
        next(p for p in model.parameters() if not p.requires_grad).data[0, 0] += 1
    return model
module.load = load_another
"""


@pytest.mark.parametrize("load", ["mmap", pytest.param("broadcast", marks=pytest.mark.long)])
def test_a_rank_with_other_weights_than_rank_0_is_named_unless_rank_0_sends_its_own(
    user: User, load: str
) -> None:
    env = user.hooked("train.worker", _OTHER_FILES)
    settings = ("launch.start=cold", f"launch.load={load}", "train.method=lora")
    options = [part for one in settings for part in ("--set", one)]
    code, out, err = user.finish(*SHORT, *options, env=env)
    if load == "broadcast":
        assert code == 0, out + err
        return
    assert code != 0
    log = user.run().rank_log(0, 0).read_text()
    assert "the weights of rank 1 are not those of rank 0" in log
    assert "1 of " in log
    assert "--set launch.load=broadcast" in log
