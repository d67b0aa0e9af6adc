"""The model rung: the model's files, its plan, its weights, and its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnosing import diagnose
from tests.models import tiny_model, with_nan

pytestmark = pytest.mark.runs  # loads and trains


@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.long)])
def test_the_model_of_tiny_is_green(on_cpu: dict[str, str], method: str) -> None:
    ended = diagnose("model", "--set", f"train.method={method}", env=on_cpu)
    assert ended.code == 0, ended.output
    meta, loaded = (ended.finding(check)["figures"] for check in ("on meta", "load"))
    assert meta["num_parameters"] == loaded["num_parameters"] > 800_000
    assert ended.finding("forward")["figures"]["loss"] == pytest.approx(5.6, abs=0.5)  # ln 260


def test_weights_cut_short_are_red_before_anything_is_loaded(
    on_cpu: dict[str, str], tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path / "model")
    file = folder / "model.safetensors"
    with file.open("r+b") as content:
        content.truncate(file.stat().st_size - 1000)
    ended = diagnose("model", "--set", f"model.path={folder}", env=on_cpu)
    assert ended.code == 4
    (found,) = ended.summary["findings"]
    assert found["check"] == "files"
    assert str(file) in found["text"]
    assert found["do"]


def test_weights_that_are_no_numbers_are_named(on_cpu: dict[str, str], tmp_path: Path) -> None:
    folder = with_nan(tiny_model(tmp_path / "model"), "model.norm.weight")
    ended = diagnose("model", "--set", f"model.path={folder}", env=on_cpu)
    assert ended.code == 4
    assert "NaN or infinity in model.norm.weight" in ended.finding("weights")["text"]
    assert not ended.finding("forward")["ok"]
    assert ended.finding("load")["ok"]


@pytest.mark.long
def test_a_model_that_cannot_fit_is_red_and_not_loaded(on_cpu: dict[str, str]) -> None:
    asked = (
        "launch.needs_gpu=false",
        "launch.load=random",
        "launch.start=cold",
        "train.method=full",
    )
    settings = [word for setting in asked for word in ("--set", setting)]
    ended = diagnose("model", "--profile", "32b", *settings, "--num-gpus", "8", env=on_cpu)
    assert ended.code == 4
    assert "does not fit" in ended.finding("on meta")["text"]
    assert "./airlock plan 32b" in ended.finding("on meta")["do"]
    assert "load" not in [one["check"] for one in ended.summary["findings"]]


@pytest.mark.gpu
def test_the_model_is_held_by_the_first_gpu(environ: dict[str, str]) -> None:
    ended = diagnose("model", "--set", "model.dtype=bfloat16", env=environ)
    assert ended.code == 0, ended.output
    assert "on cuda:0" in ended.finding("load")["text"]
    assert 0 < ended.finding("load")["figures"]["held_bytes"] < 2 * 1024**3
