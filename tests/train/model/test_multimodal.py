"""Multimodal models trained on text: as their own class computes it, and exported as they came."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config

from benchmarks.architectures.small_models import small_config
from rundir.config import RunConfig
from rundir.errors import UserError
from tests.conftest import ROOT
from tests.multimodal import (
    MOST_COMMON,
    OTHERS,
    assert_exported_as_it_came,
    contents,
    logits_of,
    multimodal_folder,
    summed_loss,
    whole_model,
)
from train.batches.batch import collate
from train.data.dataset import Sample, prompted
from train.model.adapters import covered
from train.model.build import add_method, load_model
from train.model.export import export, export_adapter
from train.model.export_towers import tensors_of
from train.model.loss import SummedLoss
from train.model.multimodal import (
    LeftOut,
    class_for,
    in_towers,
    known_class,
    towers_line,
    towers_of,
)
from train.step.selftest import tried_of

NUM_PROMPT = 4  # tokens
KINDS = [*MOST_COMMON, *(pytest.param(kind, marks=pytest.mark.long) for kind in OTHERS)]


def configured(method: str = "full", **model: Any) -> RunConfig:
    config = RunConfig(profile="test")
    return replace(
        config,
        model=replace(config.model, **({"dtype": "float32"} | model)),
        train=replace(config.train, method=method, lora_rank=4, global_batch_size=2),  # type: ignore[arg-type]
        data=replace(config.data, max_seq_length=64, packing=False),
        launch=replace(config.launch, device="cpu", num_ranks=1),
    )


def samples() -> list[Sample]:
    draw = np.random.default_rng(3).integers
    return [prompted(draw(5, 200, length).astype(np.int32), NUM_PROMPT) for length in (9, 17, 12)]


def moved(model: Any) -> Any:
    """Take a step, of a kind that changes every weight that is trained."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_its_class_does_and_is_exported_as_it_came(
    tmp_path: Path, kind: str, method: str
) -> None:
    base = multimodal_folder(kind, tmp_path / "base")
    config = configured(method)
    model = add_method(load_model(config, base, torch.device("cpu")), config.train)
    tried = tried_of(model, config)
    whole = whole_model(base).train()
    summed = SummedLoss(model, head=tried.head)
    for sample in samples():
        loss = summed(*collate([sample]).arguments()).detach()
        alone = summed_loss(whole, sample[0].tolist(), NUM_PROMPT)
        assert float(loss) == pytest.approx(alone, rel=1e-6)
    if method == "lora":
        reached, total, without = covered(model)
        assert reached > 0.9 * total, without

    moved(model)
    if method == "lora":
        export_adapter(model, tmp_path / "adapter", base=str(base), revision="")
    trained = logits_of(model)
    export(model, base, tmp_path / "model", end_token_id=259)
    again = assert_exported_as_it_came(base, tmp_path / "model")
    assert torch.allclose(logits_of(again), trained, atol=1e-3)
    if method == "lora":
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(whole_model(base), tmp_path / "adapter")
        in_tower = in_towers(adapted.get_base_model())
        names = [name for name, _ in adapted.get_base_model().named_modules() if "lora_" in name]
        assert names
        assert not [name for name in names if in_tower(name)]
        assert torch.allclose(logits_of(adapted), trained, atol=1e-3)


def test_towers_are_left_out_or_kept_frozen_and_are_exported_the_same(tmp_path: Path) -> None:
    base = multimodal_folder("gemma3", tmp_path / "base", torch.bfloat16)
    device, sizes, exported = torch.device("cpu"), {}, {}
    for towers in ("skip", "keep"):
        config = configured(towers=towers)  # in float32, unlike its files
        model = load_model(config, base, device)
        is_frozen = in_towers(model)
        assert set(towers_of(model)) == {"model.vision_tower", "model.multi_modal_projector"}
        assert not [n for n, p in model.named_parameters() if is_frozen(n) and p.requires_grad]
        assert not [n for n, p in model.named_parameters() if not (is_frozen(n) or p.requires_grad)]
        line = towers_line(model) or ""
        assert "model.vision_tower, model.multi_modal_projector" in line
        assert f"model.towers={towers}" in line
        assert not tried_of(model, config).unused
        sizes[towers] = sum(parameter.numel() for parameter in model.parameters())
        export(model, base, tmp_path / towers, end_token_id=259)
        exported[towers] = contents(tmp_path / towers)
    assert sizes["skip"] < sizes["keep"]
    before = contents(base)
    assert exported["skip"].keys() == exported["keep"].keys() == before.keys()
    for name, tensor in before.items():
        if name.startswith(("vision_tower", "multi_modal_projector")):
            for found in exported.values():
                assert torch.equal(found[name], tensor)
                assert found[name].dtype == tensor.dtype == torch.bfloat16


LOAD = """
import sys
from pathlib import Path
import torch
from rundir.config import RunConfig
from train.model.build import load_model
for folder in sys.argv[1:]:
    load_model(RunConfig(profile="test"), Path(folder), torch.device("cpu"))
"""


def printed_by_loads(*folders: Path) -> str:
    """Return everything that a process prints that loads checkpoints as a rank does."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, folders)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("kinds", [MOST_COMMON, OTHERS], ids=["common", "others"])
def test_weights_of_towers_are_not_reported_and_others_too_many_or_missing_are(
    tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    base = multimodal_folder("gemma3", tmp_path / "base")
    stored = contents(base)
    missing = next(name for name in stored if name.endswith("layers.1.mlp.down_proj.weight"))
    weight = stored.pop(missing)
    odd = missing.replace("down_proj", "odd_proj")
    save_file(stored | {odd: weight}, base / "model.safetensors", {"format": "pt"})
    whole = [multimodal_folder(kind, tmp_path / kind) for kind in kinds]
    printed = printed_by_loads(*whole, base)
    assert printed.count("LOAD REPORT") == 1
    reported = [
        line.split("|")[:2]
        for line in printed.splitlines()
        if "UNEXPECTED " in line or "MISSING " in line
    ]
    assert sorted(
        (name.strip().rpartition(".layers.")[2], status.strip()) for name, status in reported
    ) == [("1.mlp.down_proj.weight", "MISSING"), ("1.mlp.odd_proj.weight", "UNEXPECTED")]


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkpoint that no test changes."""
    return multimodal_folder("gemma3", tmp_path_factory.mktemp("gemma3") / "base")


def test_towers_have_to_fit_on_the_disk_before_anything_is_written(
    tmp_path: Path, gemma3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = gemma3
    model = load_model(configured(), base, torch.device("cpu"))
    of_text = sum(parameter.nbytes for parameter in model.parameters())
    whole = sum(file.stat().st_size for file in set(tensors_of(base).values()))
    usage, free = shutil.disk_usage(tmp_path), (2 * of_text + whole) // 3
    assert of_text < 0.9 * free < free < whole
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=free))
    with pytest.raises(OSError, match="the trained model takes"):
        export(model, base, tmp_path / "model", end_token_id=259)
    assert list(tmp_path.iterdir()) == []


def test_adapters_stay_out_of_towers_that_are_kept(gemma3: Path) -> None:
    config = configured("lora", towers="keep")
    model = add_method(load_model(config, gemma3, torch.device("cpu")), config.train)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert not [name for name in trained if "vision_tower" in name or "projector" in name]


def test_a_head_stored_beside_the_embedding_it_is_tied_to_is_exported_as_trained(
    tmp_path: Path,
) -> None:
    base = multimodal_folder("gemma3", tmp_path / "base")
    stored = contents(base)
    embedding = next(name for name in stored if name.endswith("embed_tokens.weight"))
    head = "language_model.lm_head.weight"
    save_file(
        stored | {head: stored[embedding].clone()}, base / "model.safetensors", {"format": "pt"}
    )
    model = moved(load_model(configured(), base, torch.device("cpu")))
    export(model, base, tmp_path / "model", end_token_id=259)
    after = contents(tmp_path / "model")
    assert after.keys() == stored.keys() | {head}
    assert torch.equal(after[head], after[embedding])
    assert not torch.equal(after[head], stored[embedding])


def test_a_tower_that_text_needs_names_the_setting_that_keeps_it() -> None:
    with pytest.raises(UserError) as error:
        LeftOut(torch.nn.Linear(2, 2))(torch.zeros(1, 2))
    assert error.value.do == "--set model.towers=keep"


def test_a_text_model_is_loaded_as_before() -> None:
    assert class_for(Qwen3Config()) is None
    assert known_class(Qwen3Config()).__name__ == "Qwen3ForCausalLM"
    of_text = small_config("qwen3_5")
    assert class_for(of_text).__name__ == "Qwen3_5ForConditionalGeneration"
    of_text.architectures = ["Qwen3_5ForCausalLM"]
    assert class_for(of_text) is None
