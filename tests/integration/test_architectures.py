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
from tests.running import SHORT, Start, events_of, finish, run_folder
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


@pytest.mark.runs
@pytest.mark.parametrize(
    ("kind", "settings", "line"),
    [
        pytest.param("granite", {}, "", marks=pytest.mark.long),
        pytest.param("gemma2", {}, "ATTENTION: eager", marks=pytest.mark.long),
        pytest.param("deepseek_v3", {}, "", marks=pytest.mark.long),
        ("jamba", {}, r"PACKING: samples share rows, and 2 × JambaMambaMixer"),  # noqa: RUF001
        ("bloom", {}, r"PACKING: by length, 2 steps compute 1\.\d+ times their tokens"),
        pytest.param("mamba2", {"data.packing": "false"}, "LORA: ", marks=pytest.mark.long),
        pytest.param("qwen3_next", {}, "PACKING: samples share rows", marks=pytest.mark.long),
        pytest.param("zamba2", {}, "PACKING: samples share rows", marks=pytest.mark.long),
    ],
)
def test_it_is_trained_in_bfloat16_with_adapters_on_two_ranks(
    airlock: Start,
    environ: dict[str, str],
    tmp_path: Path,
    kind: str,
    settings: dict[str, str],
    line: str,
) -> None:
    folder = model_folder(kind, tmp_path / "model")
    wanted = {"model.path": folder, "model.dtype": "bfloat16", "train.method": "lora"} | settings
    options = [part for name, value in wanted.items() for part in ("--set", f"{name}={value}")]
    code, out, err = finish(airlock(*RUN, *options))
    assert code == 0, out + err
    run = run_folder(environ)
    assert [event["step"] for event in events_of(run, "metric", "train", rank=0)] == [1, 2]

    assert re.search(line, said(run))
    exported: Any = AutoModelForCausalLM.from_pretrained(run.model)
    assert exported(input_ids=torch.arange(5, 15)[None]).logits.isfinite().all()


@pytest.mark.runs
def test_tokens_that_were_added_are_trained_and_a_second_run_goes_on_from_the_adapter(
    airlock: Start, environ: dict[str, str], tmp_path: Path
) -> None:
    added = [f"<new{i}>" for i in range(6)]
    folder = model_folder("llama", tmp_path / "model", *added)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": f"a {one} b {one}"}) + "\n" for one in added * 4))
    model = ("--set", f"model.path={folder}", "--set", "train.method=lora", "--data", str(data))
    code, out, err = finish(airlock(*RUN, *model))
    assert code == 0, out + err
    assert "2 added tokens beyond the model's 264" in " ".join((out + err).split())
    first = run_folder(environ)
    exported: Any = AutoModelForCausalLM.from_pretrained(first.model)
    rows = exported.get_input_embeddings().weight
    assert len(rows) == 266
    assert not torch.equal(rows[-1], rows[-2])  # both started as the mean of all others

    code, out, err = finish(airlock(*RUN, *model, "--set", f"train.adapter={first.adapter}"))
    assert code == 0, out + err
    losses = [event["loss"] for event in events_of(run_folder(environ), "metric", "train", rank=0)]
    assert losses[0] < events_of(first, "metric", "train", rank=0)[0]["loss"]


@pytest.mark.runs
def test_a_model_whose_samples_cannot_share_a_row_is_refused_if_that_was_asked_for(
    airlock: Start, tmp_path: Path
) -> None:
    folder = model_folder("bloom", tmp_path / "model")
    packed = ("--set", "data.packing=true")
    code, out, err = finish(airlock(*RUN, "--set", f"model.path={folder}", *packed))
    assert code == 4, out + err
    shown = " ".join(out.split())
    assert "bloom: its attention weighs by distance" in shown
    assert "--set data.packing=auto" in shown
    assert "Traceback" not in out + err, out


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "is an encoder-decoder"),
        ({"model_type": "vit"}, "is no language model that transformers knows"),
    ],
)
def test_what_is_no_causal_model_is_refused_before_any_rank_is_started(
    airlock: Start,
    environ: dict[str, str],
    tmp_path: Path,
    config: dict[str, Any],
    words: str,
) -> None:
    folder = tmp_path / "model"
    tokenizer: Any = byte_tokenizer()  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    code, out, err = finish(airlock(*RUN, "--set", f"model.path={folder}"))
    assert code == 4, out + err
    assert words in err
    assert not events_of(run_folder(environ), "mark", "mem.start")
