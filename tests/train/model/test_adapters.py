"""The weights that get adapters: every matrix of a block, experts too, and never a router."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from benchmarks.architectures.small_models import VOCABULARY, enlarge, small_config
from rundir.config import RunConfig, TrainConfig
from rundir.errors import ExitCode, UserError
from train.batches.batch import Batch
from train.data.fits_model import check_adapter, num_tokens
from train.model.adapters import coverage_line, covered
from train.model.build import add_method, merged, new_model, vocabulary_of
from train.model.export import export_adapter
from train.model.loss import SummedLoss
from train.model.new_tokens import grow
from train.step.selftest import try_step

IDS = torch.arange(5, 25)[None]


def made(kind: str, *, draw: bool = True, **options: Any) -> Any:
    base = enlarge(new_model(small_config(kind), RunConfig(profile="test"), torch.device("cpu")))
    model = add_method(base.float(), TrainConfig(method="lora", lora_rank=4, **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if draw and "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids, use_cache=False).logits
    return found


def trained(model: Any) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "deepseek_v3", "mixtral", "gpt_oss"])
def test_all_but_routers_is_reached_and_trained(kind: str) -> None:
    model = made(kind)
    reached, total, without = covered(model)
    assert reached / total > 0.98
    assert all(name.endswith((".gate", ".router", "_bias")) for name in without)
    assert not any("router" in name or ".gate." in name for name in trained(model))
    assert try_step(model).unused == ()
    if kind != "llama":
        assert any(".experts." in name for name in trained(model))


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3", "gpt_oss", "zamba", "zamba2"])
def test_adapters_that_are_merged_or_loaded_by_peft_alone_compute_the_same(
    kind: str, tmp_path: Path
) -> None:
    from peft import PeftModel

    model = made(kind)
    expected = logits(model)
    base = new_model(small_config(kind), RunConfig(profile="test"), torch.device("cpu"))
    enlarge(base).save_pretrained(tmp_path / "base")
    export_adapter(model, tmp_path / "adapter", base=str(tmp_path / "base"), revision="")
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    assert told["base_model_name_or_path"] == str(tmp_path / "base")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    again = logits(PeftModel.from_pretrained(loaded, tmp_path / "adapter"))
    assert (again - expected).abs().max() < 0.02 * expected.abs().max()  # the base is bfloat16
    if "zamba" in kind:  # whose scan makes more of float32's rounding on some processors
        expected = logits(model.double())
    assert (logits(merged(model)) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_layers_that_a_kernel_reads_by_itself_are_left_and_their_share_said() -> None:
    model = made("mamba2")
    assert not any("out_proj" in name for name in trained(model))
    line = coverage_line(model)
    assert line
    assert line.startswith("LORA: adapters are on ")
    assert "mixer.out_proj" in line


def test_what_the_model_never_asks_is_found_by_a_trial_step_that_leaves_nothing() -> None:
    model = made("jamba")
    unused = try_step(model).unused
    assert unused
    assert all("dt_proj" in name for name in unused)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("options", [{"lora_dropout": 0.1}, {"lora_dora": True}], ids=str)
def test_with_dropout_or_dora_experts_go_without_and_that_is_said(options: dict[str, Any]) -> None:
    model = made("qwen3_moe", **options)
    assert not any(".experts." in name for name in trained(model))
    assert "mlp.experts" in str(coverage_line(model)) or "experts." in str(coverage_line(model))
    kinds = {type(module).__name__ for module in model.modules()}
    assert ("Dropout" in kinds) == ("lora_dropout" in options)
    assert any("magnitude" in name for name in trained(model)) == ("lora_dora" in options)


@pytest.mark.parametrize(
    ("kind", "targets", "layers"),
    [
        ("qwen3_moe", "q_proj, experts.down_proj", {"self_attn.q_proj", "mlp.experts"}),
        ("deepseek_v3", "shared_experts.down_proj", {"shared_experts.down_proj"}),
        ("llama", "0.self_attn.q_proj", {"layers.0.self_attn.q_proj"}),
    ],
)
def test_targets_by_name_alone_get_adapters(kind: str, targets: str, layers: set[str]) -> None:
    names = {
        name.split(".lora")[0].removesuffix(".base_layer")
        for name in trained(made(kind, lora_targets=targets))
    }
    assert names
    assert all(name.endswith(tuple(layers)) for name in names), names
    assert all(any(name.endswith(layer) for name in names) for layer in layers)


def test_a_target_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UserError, match=r"ends in 'q_porj'; there are .*q_proj") as raised:
        made("llama", lora_targets="q_porj")
    assert raised.value.code == ExitCode.PREFLIGHT
    assert "train.lora_targets=" in raised.value.do


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank() -> None:
    from peft.tuners.lora import LoraLayer

    for is_stabilised, expected in ((False, 8.0), (True, 16.0)):
        model = made("llama", lora_rslora=is_stabilised)
        layer = next(one for one in model.modules() if isinstance(one, LoraLayer))
        assert layer.scaling == {"default": expected}


@pytest.mark.parametrize("kind", ["deepseek_v3", "zamba2"])
def test_going_on_from_an_adapter_begins_where_it_was(kind: str, tmp_path: Path) -> None:
    model = made(kind, lora_rslora=True)
    export_adapter(model, tmp_path / "adapter", base="", revision="")
    again = made(kind, adapter=str(tmp_path / "adapter"), draw=False)
    assert torch.equal(logits(again), logits(model))
    assert trained(again) == trained(model)
    assert try_step(again).unused == ()


def test_adapters_that_differ_for_layers_of_one_weight_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    export_adapter(made("zamba2"), folder, base="", revision="")
    weights = load_file(folder / "adapter_model.safetensors")
    of_second = max(name for name in weights if "shared_transformer" in name and "lora_B" in name)
    weights[of_second] += 1
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match="differ from those of another layer"):
        made("zamba2", adapter=str(folder), draw=False)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    export_adapter(made("llama"), tmp_path / "adapter", base="", revision="")
    with pytest.raises(UserError, match="adapters are another model's") as raised:
        made("gpt2", adapter=str(tmp_path / "adapter"))
    assert raised.value.code == ExitCode.PREFLIGHT


def test_what_is_no_folder_of_lora_adapters_is_refused_before_the_start(tmp_path: Path) -> None:
    lora = TrainConfig(method="lora", adapter=str(tmp_path))
    with pytest.raises(UserError, match="No such file"):
        check_adapter(lora)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(UserError, match="its adapters are IA3"):
        check_adapter(lora)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    check_adapter(lora)
    with pytest.raises(UserError, match="there are no adapters"):
        check_adapter(TrainConfig(method="full", adapter=str(tmp_path)))


def write_tokenizer(folder: Path, num_words: int, num_added: int) -> None:
    words = {f"word{i}": i for i in range(num_words)}
    added = [{"id": num_words + i, "content": f"<new{i}>"} for i in range(num_added)]
    made_of = {"model": {"vocab": words}, "added_tokens": added}
    (folder / "tokenizer.json").write_text(json.dumps(made_of))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "granite"])
def test_tokens_that_were_added_get_embeddings_which_are_trained_and_exported(
    kind: str, is_tied: bool, tmp_path: Path
) -> None:
    described = small_config(kind)
    described.tie_word_embeddings = is_tied
    write_tokenizer(tmp_path, VOCABULARY, num_added=3)
    base = enlarge(new_model(described, RunConfig(profile="test"), torch.device("cpu"))).float()
    grow(base, tmp_path)
    assert vocabulary_of(base) == base.config.vocab_size == VOCABULARY + 3
    rows = base.get_input_embeddings().weight
    assert torch.allclose(rows[-1], rows[:VOCABULARY].mean(0))

    model = add_method(base, TrainConfig(method="lora", lora_rank=4))
    new = {name: p for name, p in model.named_parameters() if "trainable_tokens" in name}
    assert [tuple(p.shape) for p in new.values()] == [(3, 64)] * (1 if is_tied else 2)
    assert all(p.requires_grad for p in new.values())
    tried = try_step(model)
    assert tried.head == "own"
    ids = torch.tensor([[VOCABULARY, VOCABULARY + 1, VOCABULARY + 2, 5, VOCABULARY]])
    batch = Batch(ids, ids, 5)
    losses = {}
    for head in ("own", "whole"):
        model.zero_grad()
        loss = SummedLoss(model, head=head)(*batch.arguments())
        loss.backward()
        losses[head] = loss.detach(), [p.grad.clone() for p in new.values()]
    assert torch.allclose(losses["own"][0], losses["whole"][0], rtol=1e-6)
    for own, whole in zip(losses["own"][1], losses["whole"][1], strict=True):
        assert whole.norm() > 0
        assert (own - whole).norm() < 1e-5 * whole.norm()
    with torch.no_grad():
        for p in new.values():
            p.add_(0.5)
    before = logits(model, ids)
    plain = merged(model)
    assert torch.allclose(logits(plain, ids), before, atol=1e-4)
    assert type(plain.get_output_embeddings()) is torch.nn.Linear


def test_a_larger_vocabulary_that_nobody_added_to_is_another_models(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 300, num_added=1)
    assert num_tokens(tmp_path, 264) == 0
    assert num_tokens(tmp_path, 300) == 301
    assert num_tokens(tmp_path, 301) == 0
