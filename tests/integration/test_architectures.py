"""Whole runs of unusual models: trained right, or refused with a reason and exit code 4."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.architectures.small_models import enlarge, small_config
from rundir.paths import RunDir
from tests.running import SHORT, User, as_options, events_of
from train.model.make_checkpoint import byte_tokenizer

RUN = (*SHORT, "--set", "train.max_steps=2", "--set", "train.lora_rank=4")


def model_folder(kind: str, folder: Path, *added: str) -> Path:
    """Make a small random model of that kind, like a downloaded one, with tokens added."""
    tokenizer: Any = byte_tokenizer()  # type: ignore[no-untyped-call]
    tokenizer.add_tokens(list(added))
    tokenizer.save_pretrained(folder)
    described = small_config(kind)
    described.bos_token_id = None
    described.pad_token_id = tokenizer.pad_token_id
    described.eos_token_id = tokenizer.eos_token_id
    auto: Any = AutoModelForCausalLM
    enlarge(auto.from_config(described, dtype=torch.bfloat16)).save_pretrained(folder)
    return folder


def said(run: RunDir) -> str:
    return "\n".join(event["text"] for event in events_of(run, "log", "line"))


@pytest.mark.parametrize(
    ("kind", "settings", "line"),
    [
        pytest.param("granite", {}, "", marks=pytest.mark.long),
        pytest.param("gemma2", {}, "ATTENTION: eager", marks=pytest.mark.long),
        pytest.param("deepseek_v3", {}, "", marks=pytest.mark.long),
        pytest.param(
            "jamba",
            {},
            r"PACKING: samples share rows, and 2 × JambaMambaMixer",  # noqa: RUF001
            marks=pytest.mark.long,
        ),
        ("bloom", {}, r"PACKING: by length, 2 steps compute 1\.\d+ times their tokens"),
        pytest.param("mamba2", {"data.packing": "false"}, "LORA: ", marks=pytest.mark.long),
        pytest.param("qwen3_next", {}, "PACKING: samples share rows", marks=pytest.mark.long),
        pytest.param("zamba2", {}, "PACKING: samples share rows", marks=pytest.mark.long),
    ],
)
def test_it_is_trained_in_bfloat16_with_adapters_on_two_ranks(
    user: User, kind: str, settings: dict[str, str], line: str
) -> None:
    folder = model_folder(kind, user.folder / "model")
    wanted = {"model.path": folder, "model.dtype": "bfloat16", "train.method": "lora"} | settings
    options = [part for name, value in wanted.items() for part in ("--set", f"{name}={value}")]
    user.output_of(*RUN, *options)
    run = user.run()
    assert [event["step"] for event in events_of(run, "metric", "train", rank=0)] == [1, 2]

    assert re.search(line, said(run))
    exported: Any = AutoModelForCausalLM.from_pretrained(run.model)
    assert exported(input_ids=torch.arange(5, 15)[None]).logits.isfinite().all()


def test_tokens_that_were_added_are_trained_and_a_second_run_goes_on_from_the_adapter(
    user: User,
) -> None:
    added = [f"<new{i}>" for i in range(6)]
    folder = model_folder("llama", user.folder / "model", *added)
    data = user.folder / "data.jsonl"
    data.write_text("".join(json.dumps({"text": f"a {one} b {one}"}) + "\n" for one in added * 4))
    model = (*as_options(f"model.path={folder}", "train.method=lora"), "--data", str(data))
    code, out, err = user.finish(*RUN, *model)
    assert code == 0, out + err
    assert "2 added tokens beyond the model's 264" in " ".join((out + err).split())
    first = user.run()
    exported: Any = AutoModelForCausalLM.from_pretrained(first.model)
    rows = exported.get_input_embeddings().weight
    assert len(rows) == 266
    assert not torch.equal(rows[-1], rows[-2])  # both started as the mean of all others

    user.output_of(*RUN, *model, "--set", f"train.adapter={first.adapter}")
    losses = [event["loss"] for event in events_of(user.run(), "metric", "train", rank=0)]
    assert losses[0] < events_of(first, "metric", "train", rank=0)[0]["loss"]


@pytest.mark.long
def test_a_model_whose_samples_cannot_share_a_row_is_refused_if_that_was_asked_for(
    user: User,
) -> None:
    folder = model_folder("bloom", user.folder / "model")
    packed = ("--set", "data.packing=true")
    code, out, err = user.finish(*RUN, "--set", f"model.path={folder}", *packed)
    assert code == 4, out + err
    shown = " ".join(out.split())
    assert "bloom: its attention weighs by distance" in shown
    assert "--set data.packing=auto" in shown
    assert "Traceback" not in out + err, out


def test_what_is_no_causal_model_is_refused_before_any_rank_is_started(user: User) -> None:
    folder = user.folder / "model"
    tokenizer: Any = byte_tokenizer()  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "vocab_size": 300}))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    err = user.error_of(*RUN, "--set", f"model.path={folder}", code=4)
    assert "is no language model that transformers knows" in err
    assert not events_of(user.run(), "mark", "mem.start")
