"""Hybrids: samples of one row change each other by exactly nothing, and train as each alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.architectures.small_models import enlarge, small_config
from tests.neighbours import difference, rows
from tests.train.model.test_models import found
from train.batches.batch import collate, collate_rows
from train.model.apart import Apart
from train.step.try_attention import logits_of, random_samples

# A gated delta net, Mamba in both forms, a short convolution, lightning attention, and what shares
# rows with attention that is told no positions.
HYBRIDS = ["qwen3_next", "qwen3_5_text", "mamba2", "jamba", "lfm2", "minimax", "granitemoehybrid"]
OTHERS = (
    "bailing_hybrid bamba falcon_h1 falcon_mamba inkling_text kimi_linear lfm2_moe mamba "
    "nemotron_h olmo_hybrid qwen3_5_moe_text qwen4_exp_text recurrent_gemma rwkv zamba zamba2 zaya"
)
ALL = [*HYBRIDS, *(pytest.param(kind, marks=pytest.mark.long) for kind in OTHERS.split())]


def made(kind: str) -> Any:
    auto: Any = AutoModelForCausalLM
    torch.manual_seed(0)
    try:
        described = small_config(kind)
    except KeyError:
        pytest.skip(f"transformers has no {kind}")
    return enlarge(auto.from_config(described, dtype=torch.float32)).train()


def kept_apart(kind: str) -> tuple[Any, Apart]:
    model = made(kind)
    return model, Apart(model, with_mask=kind == "granitemoehybrid")


@pytest.mark.parametrize("kind", ALL)
def test_a_neighbour_changes_exactly_nothing_and_each_sample_is_as_alone(kind: str) -> None:
    assert difference(made(kind)) > 0.1  # the model needs it
    model, _ = kept_apart(kind)
    assert (difference(model), difference(model, num_rows=2)) == (0.0, 0.0)
    row, _ = rows(model)
    alone = torch.cat([logits_of(model, collate([one]))[0] for one in row])
    together = logits_of(model, collate_rows([row]))[0]
    # Rows of other shapes round differently, by up to 2e-5: as do samples padded in a batch.
    assert (together - alone).abs().max() < 1e-4 * alone.abs().max()
    loss, packed = found(model, collate_rows([row[:3], row[3:]]), head="whole")
    own_loss, own = found(made(kind), *(collate([one]) for one in row), head="whole")
    assert loss == pytest.approx(own_loss, rel=1e-6)
    assert (packed - own).norm() < 1e-4 * own.norm()


@pytest.mark.parametrize("head", ["own", "whole"])
def test_what_is_computed_again_in_backward_is_kept_apart_too(head: Any) -> None:
    gradients = []
    for is_checkpointed in (False, True):
        model, _ = kept_apart("granitemoehybrid")
        if is_checkpointed:
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        gradients.append(found(model, collate_rows([rows(model)[0]]), head=head)[1])
    assert torch.equal(*gradients)


def test_answers_are_what_they_were_after_a_packed_step() -> None:
    model = made("qwen3_next").eval()
    ids = torch.arange(5, 21)[None]
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    before = [model.generate(ids, use_cache=cache, **options) for cache in (True, False)]
    plain = model(input_ids=ids).logits
    Apart(model)
    logits_of(model, collate_rows([[one] for one in random_samples(model, 0, (16, 3))]))
    logits_of(model, collate_rows([random_samples(model, 0, (9, 7))]))  # as long as the question
    assert torch.equal(model(input_ids=ids).logits, plain)
    after = [model.generate(ids, use_cache=cache, **options) for cache in (True, False)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_it_can_be_undone() -> None:
    model, apart = kept_apart("lfm2")
    assert apart.kinds == {"Lfm2ShortConv": 1}
    apart.release()
    assert difference(model) == difference(made("lfm2"))
