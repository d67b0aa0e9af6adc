"""Gradients are clipped as torch does, by a norm that is exact in bfloat16 too."""

from __future__ import annotations

import pytest
import torch

from train.update.gradients import clip_gradients


def weights_with_gradients(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    weights = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in ((300, 7), (50,))]
    for weight in weights:
        weight.grad = torch.randn(weight.shape).to(dtype)
    return [*weights, torch.zeros(3, requires_grad=True)]  # one has none


@pytest.mark.parametrize("max_norm", [1.0, 1e6, float("inf")])
def test_in_float32_every_bit_is_that_of_torchs_own(max_norm: float) -> None:
    ours, theirs = (weights_with_gradients(torch.float32) for _ in range(2))
    norm = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    assert torch.equal(clip_gradients(ours, max_norm), norm)
    for one, other in zip(ours[:2], theirs, strict=False):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_in_bfloat16_the_norm_has_all_digits_and_what_is_clipped_has_the_norm_asked_for() -> None:
    weights = weights_with_gradients(torch.bfloat16)
    exact = sum(w.grad.double().square().sum() for w in weights if w.grad is not None) ** 0.5
    norm = clip_gradients(weights, 1.0)
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(float(exact), rel=1e-6)
    after = sum(w.grad.double().square().sum() for w in weights if w.grad is not None) ** 0.5
    assert float(after) == pytest.approx(1.0, rel=5e-4)  # each is rounded to bfloat16
