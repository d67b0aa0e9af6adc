"""The summed loss: transformers' own times its number of tokens, however samples are batched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.models import QWEN3
from tests.train.model.test_models import samples
from train.batches.batch import Batch, collate
from train.data.dataset import prompted
from train.model.loss import SummedLoss

LENGTHS = [len(tokens) for tokens, _ in samples()]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    made: Any = Qwen3ForCausalLM(Qwen3Config(**QWEN3))
    return made.eval()


def loss(model: Any, batch: Batch) -> Any:
    return SummedLoss(model)(*batch.arguments())


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_it_is_the_loss_of_transformers_times_the_tokens(model: Any) -> None:
    batch = collate(samples())
    with torch.no_grad():
        mean = model(input_ids=batch.input_ids, labels=batch.labels).loss
        ours = loss(model, batch)
    assert batch.num_label_tokens == sum(length - max(1, length // 3) for length in LENGTHS)
    torch.testing.assert_close(ours, mean * batch.num_label_tokens, rtol=1e-6, atol=0)


def test_padding_changes_neither_the_loss_nor_whatever_its_ids_the_gradient(model: Any) -> None:
    with torch.no_grad():
        together = loss(model, collate(samples()))
        alone = sum(loss(model, collate([sample])) for sample in samples())
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=0)
    batch, gradients = collate(samples()), []
    is_padding = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None]
    for padding in (0, 7):
        model.zero_grad()
        ids = batch.input_ids.masked_fill(is_padding, padding)
        loss(model, replace(batch, input_ids=ids)).backward()
        gradients.append(gradient(model))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-6)
    assert gradients[0].abs().max() > 0.1


@pytest.mark.parametrize("masked", ["empty", "prompts only"])
def test_a_batch_without_labels_adds_exactly_nothing(model: Any, masked: str) -> None:
    only_prompts = [prompted(tokens, len(tokens)) for tokens, _ in samples()]
    batch = collate([] if masked == "empty" else only_prompts)
    model.zero_grad()
    nothing = loss(model, batch)
    nothing.backward()
    assert nothing.item() == 0.0
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.count_nonzero(gradient(model)) == 0


def test_the_loss_of_bfloat16_weights_is_computed_in_float32(model: Any) -> None:
    batch = collate(samples())
    exact = loss(model, batch)
    half: Any = Qwen3ForCausalLM(model.config).to(torch.bfloat16)  # type: ignore[arg-type]
    half.load_state_dict(model.state_dict())
    rounded = loss(half.eval(), batch)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact.detach(), rtol=2e-2, atol=0)
