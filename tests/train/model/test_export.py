"""The trained model for any user: a folder that transformers loads, and that answers the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rundir.config import ModelConfig, RunConfig, TrainConfig
from tests.model_tokenizers import TEXTS, auto, ids, of_bytes, saved
from tests.models import GPT2, QWEN3
from train.files.served import file_tokenizer, tokenizer_of
from train.model.build import add_method, load_model
from train.model.export import difference, export, logits_of_some
from train.model.make_checkpoint import make_checkpoint

CPU = torch.device("cpu")
IDS = torch.tensor([[10, 20, 30, 40, 50, 60, 70, 80]])


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model folder like the one `tiny` starts from."""
    folder = tmp_path_factory.mktemp("base") / "model"
    config = RunConfig(
        profile="p",
        model=ModelConfig(dtype="float32"),
        architecture=QWEN3 | {"tie_word_embeddings": request.param},
        train=TrainConfig(seed=1),
    )
    make_checkpoint(config, folder)
    return folder


def loaded(base: Path, train: TrainConfig, **settings: Any) -> Any:
    config = RunConfig(profile="p", model=ModelConfig(dtype="float32", **settings), train=train)
    return add_method(load_model(config, base, CPU), train)


def trained(base: Path, method: Any, **settings: Any) -> Any:
    """Return a model whose trained weights differ from those of its base."""
    model = loaded(base, TrainConfig(method=method, lora_rank=4), **settings)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_folder_is_a_plain_model_that_answers_as_before_with_its_tokenizer(
    base: Path, tmp_path: Path, method: str
) -> None:
    load: Any = AutoModelForCausalLM.from_pretrained
    model, folder = trained(base, method), tmp_path / "model"
    before = logits_of_some(model)
    export(model, base, folder, end_token_id=1)
    after = logits_of_some(load(folder))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
    assert (before - logits_of_some(load(base))).abs().max() > 0.1  # it was trained
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not any("adapter" in name for name in names)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (base / name).read_bytes()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config.get("use_cache", True) is True
    tokenizer = auto(folder)
    chat = [{"role": "user", "content": "größe"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == "<|user|>größe<|assistant|>"


@pytest.fixture
def base_of_class(tmp_path: Path) -> Path:
    """Make a model folder whose class tokenises otherwise than its tokenizer.json says."""
    folder = tmp_path / "base"
    architecture = GPT2 | {"vocab_size": 340}
    config = RunConfig(profile="p", model=ModelConfig(dtype="float32"), architecture=architecture)
    make_checkpoint(config, folder)
    other = saved(tmp_path / "tokenizer", of_bytes(normalize=True), "gpt2")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(other / name, folder / name)
    return folder


def test_the_folder_is_served_with_the_ids_that_were_trained_on_or_that_is_told(
    base_of_class: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    model = loaded(base_of_class, TrainConfig(method="full"))
    export(model, base_of_class, tmp_path / "model", end_token_id=1, tell=told.append)
    trained_on, served = tokenizer_of(base_of_class), auto(tmp_path / "model")
    assert [ids(served, text) for text in TEXTS] == [ids(trained_on, text) for text in TEXTS]
    of_file = file_tokenizer(base_of_class)
    assert any(ids(trained_on, text) != ids(of_file, text) for text in TEXTS)
    assert told == []
    config = json.loads((base_of_class / "config.json").read_text("utf-8"))
    text = json.dumps(config | {"model_type": "qwen3_5"})  # the model is still written as gpt2
    (base_of_class / "config.json").write_text(text, encoding="utf-8")
    export(model, base_of_class, tmp_path / "again", end_token_id=1, tell=told.append)
    other = f"other ids with this folder than with {base_of_class}, trained on"
    assert told == [f"AutoTokenizer gives texts {other}"]


@pytest.mark.parametrize("named", [True, False])
def test_a_model_that_knows_no_padding_is_given_one_to_answer_batches_with(
    base: Path, tmp_path: Path, named: bool
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    pad = settings.pop("pad_token")
    text = json.dumps(settings | ({"pad_token": pad} if named else {}))
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    model = loaded(folder, TrainConfig(method="full"))
    model.config.pad_token_id = model.generation_config.pad_token_id = None
    export(model, folder, tmp_path / "out", end_token_id=259)
    told = json.loads((tmp_path / "out" / "generation_config.json").read_text("utf-8"))
    assert told["pad_token_id"] == (256 if named else 259)
    both = torch.tensor([[1, 2, 3], [told["pad_token_id"], 2, 3]])
    found = loaded(tmp_path / "out", TrainConfig(method="full")).eval()
    mask = torch.tensor([[1, 1, 1], [0, 1, 1]])
    answers = found.generate(both, attention_mask=mask, max_new_tokens=4)
    assert len(answers) == 2


def test_a_model_can_be_trained_further_from_its_export(base: Path, tmp_path: Path) -> None:
    model = trained(base, "lora")
    export(model, base, tmp_path / "model", end_token_id=1)
    again = trained(tmp_path / "model", "full", gradient_checkpointing=True).train()
    loss: Any = again(input_ids=IDS, labels=IDS).loss
    loss.backward()
    assert all(parameter.grad is not None for parameter in again.parameters())


def test_new_adapters_change_nothing_and_are_the_same_on_every_rank(base: Path) -> None:
    models = [loaded(base, TrainConfig(seed=seed)) for seed in (0, 0, 1)]
    plain = loaded(base, TrainConfig(method="full"))
    for model in models:
        torch.testing.assert_close(logits_of_some(model), logits_of_some(plain))
    weights = [torch.cat([p.flatten() for p in m.parameters() if p.requires_grad]) for m in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_full_folder_of_another_run_stays(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "mine").touch()
    export(trained(base, "full"), base, folder, end_token_id=1)
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_merge_that_changes_logits_is_seen(base: Path, tmp_path: Path) -> None:
    model = trained(base, "lora")
    before = logits_of_some(model)
    plain = export(model, base, tmp_path / "model", end_token_id=1)
    assert difference(before, logits_of_some(plain)) < 1e-5
    with torch.no_grad():
        plain.lm_head.weight.mul_(1.1)
    assert difference(before, logits_of_some(plain)) > 0.05
