"""QLoRA's base: the same as transformers would load, and of the planned size."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rundir.config import ModelConfig, RunConfig, TrainConfig
from rundir.config_file import config_text
from tests.conftest import ROOT
from tests.running import python
from tests.train.model.test_models import SHAPES, assert_same, found, samples
from train.batches.batch import collate, collate_rows
from train.model import quantize as quantize_module
from train.model.build import add_method, load_architecture, load_model, new_model, num_weights
from train.model.export import difference, export, export_adapter, logits_of_some, on_whole_base
from train.model.make_checkpoint import make_checkpoint
from train.model.quantize import states_of
from train.step.selftest import head_kind
from train.step.try_packing import check_packing
from train.trace.step_trace import _weights

pytest.importorskip("bitsandbytes")
CPU = torch.device("cpu")
IDS = torch.arange(3, 43)[None]


def configured(kind: str, method: str = "qlora", **shape: Any) -> RunConfig:
    return RunConfig(
        profile="test",
        architecture={"model_type": kind, **SHAPES[kind], **shape},
        model=ModelConfig(dtype="bfloat16"),
        train=TrainConfig(method=method, lora_rank=4),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"))


class Bases:
    """Checkpoints in bfloat16, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, config: RunConfig) -> Path:
        shape = config.architecture
        folder = self._folder / f"{shape['model_type']} {shape.get('tie_word_embeddings')}"
        if not folder.exists():
            make_checkpoint(replace(config, model=ModelConfig(dtype="bfloat16")), folder)
        return folder

    def random(self, config: RunConfig, device: torch.device = CPU) -> Any:
        return new_model(load_architecture(config.model, self.of(config)), config, device)

    def loaded(self, config: RunConfig) -> Any:
        return load_model(config, self.of(config), CPU)


def in_four_bits(model: Any) -> dict[str, list[int]]:
    return {
        name: [one.nbytes for one in (module.weight, *states_of(module.weight))]
        for name, module in model.named_modules()
        if type(module).__name__ == "Linear4bit"
    }


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_weights_made_here_are_held_as_those_that_transformers_loads(
    kind: str, is_tied: bool, bases: Bases
) -> None:
    config = configured(kind, tie_word_embeddings=is_tied)
    loaded, made = bases.loaded(config), bases.random(config)
    assert in_four_bits(made) == in_four_bits(loaded) != {}
    dtypes = {name: p.dtype for name, p in made.named_parameters()}
    assert dtypes == {name: p.dtype for name, p in loaded.named_parameters()}
    assert dtypes[next(iter(dtypes))] == torch.bfloat16  # the embedding
    with torch.no_grad():  # of the same seed, so of the same weights
        torch.testing.assert_close(made(IDS).logits, loaded(IDS).logits)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_a_plan_sees_the_bytes_and_the_weights_that_there_are(kind: str, bases: Bases) -> None:
    config = configured(kind)
    planned, real = bases.random(config, torch.device("meta")), bases.random(config)
    assert [one.nbytes for one in _weights(planned)] == [one.nbytes for one in _weights(real)]
    plain = bases.random(configured(kind, method="lora"))
    assert num_weights(planned) == num_weights(plain) == sum(p.numel() for p in plain.parameters())


def test_packed_is_unpacked_and_only_adapters_are_trained(bases: Bases) -> None:
    config = replace(configured("qwen3"), model=ModelConfig(dtype="float32"))
    model = add_method(bases.loaded(config), config.train)
    check_packing(model)
    assert head_kind(model) == "matrix"
    some = samples()
    packed = collate_rows([[some[0], some[1], some[2]], [some[3], some[4]], [some[5]]])
    assert_same(found(model, packed), found(model, collate(some)))
    for name, p in model.named_parameters():
        assert (p.grad is not None) == p.requires_grad == ("lora_" in name), name


def test_an_evaluation_leaves_four_bits_as_they_are(bases: Bases) -> None:
    model = bases.loaded(configured("qwen3"))
    before = [p.clone() for p in model.parameters()]
    with torch.no_grad():
        model.eval()(IDS)
    assert all(map(torch.equal, before, model.parameters()))
    assert not any(getattr(m, "support_avx512bf16_for_cpu", False) for m in model.modules())


def test_adapters_are_merged_into_the_weights_as_they_were_before(
    tmp_path: Path, bases: Bases
) -> None:
    config = replace(configured("qwen3"), model=ModelConfig(dtype="float32"))
    base = bases.of(config)
    model = add_method(bases.loaded(config), config.train)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_()
    export_adapter(model, tmp_path / "adapter", base=str(base), revision="")
    whole = on_whole_base(config, base, tmp_path / "adapter")
    expected, trained = logits_of_some(whole), logits_of_some(model)
    merged = export(whole, base, tmp_path / "model", end_token_id=1)
    assert difference(expected, logits_of_some(merged)) < 1e-5
    assert 0 < difference(trained, logits_of_some(merged)) < 0.5  # the cost of four bits
    assert {p.dtype for p in merged.parameters()} == {torch.float32}


def test_an_original_is_gone_when_the_next_layer_is_quantized(
    bases: Bases, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen, left = quantize_module._in_four_bits, list[Any](), list[int]()

    def watched(module: Any, dtype: torch.dtype) -> Any:
        left.append(sum(one() is not None for one in seen))
        seen.append(weakref.ref(module))
        return real(module, dtype)

    monkeypatch.setattr(quantize_module, "_in_four_bits", watched)
    model = bases.random(configured("qwen3"))
    assert len(seen) == len(in_four_bits(model)) > 2
    assert not any(left), f"originals that were still there at each layer: {left}"


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.runs
def test_what_is_imported_before_ranks_are_forked_leaves_out_what_initialises_cuda(
    method: str, tmp_path: Path
) -> None:
    """As bitsandbytes and transformer_engine do; peft imports them wherever they are installed."""
    engine = tmp_path / "packages" / "transformer_engine"
    engine.mkdir(parents=True)
    (engine / "__init__.py").write_text("import torch; torch.cuda._initialized = True\n")
    config = configured("qwen3", method=method)
    make_checkpoint(config, tmp_path / "base")
    (tmp_path / "config.toml").write_text(config_text(config, {}), encoding="utf-8")
    code = f"""
import sys
from pathlib import Path
from rundir.config_file import read_config
from train import warm
folder = Path({str(tmp_path)!r})
warm._import_torch()
if {method!r} != "full":
    warm._import_peft()
warm._import_trainer()
assert ("peft" in sys.modules) == ({method!r} != "full")
assert "bitsandbytes" not in sys.modules, "imported by what the zygote imports"
assert "transformer_engine" not in sys.modules, "imported by what the zygote imports"
import torch
from train.model.build import load_model, add_method
config = read_config(folder / "config.toml")
model = add_method(load_model(config, folder / "base", torch.device("cpu")), config.train)
assert ("bitsandbytes" in sys.modules) == ({method!r} == "qlora"), "imported by the model"
assert "transformer_engine" not in sys.modules, "imported by the model"
assert not torch.cuda.is_initialized()
import transformer_engine  # it is there for those who ask
assert sum(p.requires_grad for p in model.parameters()) > 0
"""
    python(code, env={"PYTHONPATH": os.pathsep.join((str(ROOT), str(engine.parent)))})
