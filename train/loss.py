"""The loss, as a sum over label tokens, without ever holding the logits of a whole batch.

Logits are as wide as the vocabulary: in float32, with what cross-entropy makes of them, they take
12 bytes times tokens times vocabulary, more than the layers of a large model below them. So the
head and the loss are computed for some tokens at a time, and only for those with a label. The
gradient of the head's input is made on the same occasion, and nothing is computed twice (as in
Hsu et al. 2024, "Liger Kernel", section 3.2).

`torch.nn.functional.linear_cross_entropy`, new in 2.13, is not used: it returns a loss in the type
of the weights, which has three digits in bfloat16, and earlier versions do not have it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from train.model import plain_model

_LOGITS_BYTES = 256 * 1024 * 1024  # of one chunk, in float32


class SummedLoss(nn.Module):
    """A language model that returns its loss as a *sum* over label tokens.

    Sums of ranks and micro-batches add up to the loss of the whole step, whatever their lengths;
    means do not.
    """

    def __init__(self, model: nn.Module, *, in_chunks: bool = True) -> None:
        """`in_chunks`: as above, for models whose head is a matrix and no more (`is_plain`)."""
        super().__init__()
        self.model = model
        self.in_chunks = in_chunks

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None,
        where: torch.Tensor,
        targets: torch.Tensor,
    ) -> torch.Tensor:
        """Summed cross-entropy, a scalar in float32 (float64 for a model in float64).

        `input_ids` and `position_ids` are (rows, tokens); `where` are the flat indices of the
        tokens that predict one of `targets`, (labels,) both. None of them give exactly 0.
        """
        inputs = {"input_ids": input_ids, "use_cache": False}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        if not self.in_chunks:
            logits = self.model(**inputs).logits.flatten(0, 1).index_select(0, where)
            return F.cross_entropy(logits.to(_exact(logits.dtype)), targets, reduction="sum")
        plain = plain_model(self.model)
        hidden = plain.base_model(**inputs)[0].flatten(0, 1).index_select(0, where)
        head = plain.get_output_embeddings()
        loss: torch.Tensor = _ChunkedLoss.apply(hidden, head.weight, head.bias, targets)
        return loss


def has_matrix_head(model: Any) -> bool:
    """Whether layers and head can be called one after the other, and the head is a matrix."""
    plain = plain_model(model)
    return plain.base_model is not plain and isinstance(plain.get_output_embeddings(), nn.Linear)


def is_plain(model: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether the loss in chunks is the model's own: no scaling of logits, no cap on them.

    Found out with the `arguments` of one forward: some of the many architectures do more than
    their configuration tells. Raises whatever the model's own code raises.
    """
    if not has_matrix_head(model):
        return False
    with torch.no_grad():
        whole, chunked = (SummedLoss(model, in_chunks=way)(*arguments) for way in (False, True))
    tolerance = 8 * torch.finfo(next(model.parameters()).dtype).eps
    return bool((whole - chunked).abs() <= tolerance * whole.abs())


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


class _ChunkedLoss(torch.autograd.Function):
    """Summed cross-entropy of `hidden` @ `weight`ᵀ + `bias`, with its gradients made in forward.

    `hidden` is (labels, width), `weight` (vocabulary, width), `targets` (labels,). The gradient of
    the logits is softmax minus one-hot, so a chunk's logits are turned into it where they are.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
    ) -> torch.Tensor:
        exact = _exact(hidden.dtype)
        needed = ctx.needs_input_grad[:3]
        of_hidden, of_weight, of_bias = gradients = [
            torch.zeros_like(one) if is_needed and one is not None else None
            for one, is_needed in zip((hidden, weight, bias), needed, strict=True)
        ]
        total = torch.zeros((), dtype=exact, device=hidden.device)
        size = max(1, _LOGITS_BYTES // (weight.shape[0] * 4))
        for begin in range(0, len(targets), size):
            rows, wanted = hidden[begin : begin + size], targets[begin : begin + size, None]
            logits = F.linear(rows, weight, bias).to(exact)
            # In place, all of it: torch's own logsumexp takes as much again for a moment.
            logits.sub_(logits.amax(-1, keepdim=True))
            of_target = logits.gather(-1, wanted)
            sums = logits.exp_().sum(-1, keepdim=True)
            total += (sums.log() - of_target).sum()
            if not any(needed):
                continue
            logits.div_(sums).scatter_add_(-1, wanted, -torch.ones_like(sums))
            gradient = logits.to(hidden.dtype)
            if of_hidden is not None:
                torch.mm(gradient, weight, out=of_hidden[begin : begin + size])
            if of_weight is not None:
                of_weight.addmm_(gradient.T, rows)
            if of_bias is not None:
                of_bias += gradient.sum(0)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        """The gradients of forward, times that of the sum; they are used up by it."""
        (of_sum,) = outer
        return *(
            None if one is None else one.mul_(of_sum.to(one.dtype)) for one in ctx.saved_tensors
        ), None
