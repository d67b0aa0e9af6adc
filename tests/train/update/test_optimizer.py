"""The optimizer: which weights decay, and that a step is AdamW's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from train.update.optimizer import make_optimizer


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))


def test_only_matrices_decay_and_no_parameter_is_left_out() -> None:
    made = model()
    optimizer = make_optimizer(list(made.parameters()), learning_rate=1.0, weight_decay=0.1)
    decay = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert {name: decay[id(p)] for name, p in made.named_parameters()} == {
        "0.weight": 0.1,
        "1.weight": 0.0,
        "1.bias": 0.0,
        "2.weight": 0.1,
        "2.bias": 0.0,
    }


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_without_a_gradient_to_follow_only_the_decay_moves_a_weight(weight_decay: float) -> None:
    made = model()
    before = [p.detach().clone() for p in made.parameters()]
    for parameter in made.parameters():
        parameter.grad = torch.zeros_like(parameter)
    make_optimizer(list(made.parameters()), learning_rate=0.1, weight_decay=weight_decay).step()
    for old, new in zip(before, made.parameters(), strict=True):
        left = 1 - 0.1 * weight_decay if new.dim() > 1 else 1.0
        torch.testing.assert_close(new.detach(), old * left)


def test_the_first_step_has_the_size_of_the_learning_rate() -> None:
    made = model()
    before = [p.detach().clone() for p in made.parameters()]
    for parameter in made.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    make_optimizer(list(made.parameters()), learning_rate=0.01, weight_decay=0.0).step()
    for old, new in zip(before, made.parameters(), strict=True):
        torch.testing.assert_close(old - new.detach(), torch.full_like(old, 0.01))


def test_states_of_a_byte_lead_to_almost_the_same_weights() -> None:
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    start, gradients = torch.randn(96, 96), torch.randn(20, 96, 96)
    trained = []
    for in_8_bits in (False, True):
        weight = nn.Parameter(start.clone())
        optimizer = make_optimizer(
            [weight], learning_rate=0.01, weight_decay=0.1, in_8_bits=in_8_bits
        )
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        trained.append(weight.detach())
        states = [one for one in optimizer.state[weight].values() if torch.is_tensor(one)]
        large = {one.dtype for one in states if one.shape == weight.shape}
        assert large == {torch.uint8 if in_8_bits else torch.float32}
    moved = (trained[0] - start).norm()
    assert 0 < (trained[0] - trained[1]).norm() < 0.05 * moved
