"""The loss, as a sum over label tokens, without ever holding the logits of a whole batch.

Logits are as wide as the vocabulary: in float32, with what cross-entropy derives from them, they
take 12 bytes times tokens times vocabulary, more than the layers of a large model below them. So
the head and the loss are computed for some tokens at a time, and only for those with a label. The
gradient of the head's input is computed along with them, and nothing is computed twice (as in Hsu
et al. 2024, "Liger Kernel", section 3.2).

`torch.nn.functional.linear_cross_entropy`, new in 2.13, is not used: it returns a loss in the dtype
of the weights, which has three digits in bfloat16, and earlier versions do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from train.model.build import plain_model
from train.model.head import Head, MatrixHead, OwnHead, exact, layers_of
from train.model.sample_borders import borders, packing_known


class SummedLoss(nn.Module):
    """A language model that returns its loss as a *sum* over label tokens.

    Sums of ranks and micro-batches add up to the loss of the whole step, whatever their lengths;
    means do not.
    """

    def __init__(self, model: nn.Module, *, head: Head = "matrix") -> None:
        """Wrap `model`; `head` is the result of `head_of`.

        "whole" is right for any model, and takes the most memory.
        """
        super().__init__()
        self.model = model
        self.head = head

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None,
        where: torch.Tensor,
        targets: torch.Tensor,
        cu_seq_lens: torch.Tensor | None = None,
        max_length: int = 0,
        starts: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Return the summed cross-entropy, a scalar in float32 (float64 for a model in float64).

        `input_ids` and `position_ids` are (rows, tokens); `where` holds the flat indices of the
        tokens that predict `targets`, both (labels,); `cu_seq_lens` and `max_length` are those of
        `Batch`, and `starts` the first but for the end, on the host. Without labels the loss is
        exactly 0.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": False}
        inputs |= borders(plain_model(self.model), cu_seq_lens, max_length, starts)
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        shares_rows = starts and position_ids is not None and len(starts) > len(input_ids)
        with packing_known(is_packed=None if starts is None else bool(shares_rows)):
            if self.head == "whole":
                logits = self.model(**inputs).logits.flatten(0, 1).index_select(0, where)
                return F.cross_entropy(logits.to(exact(logits.dtype)), targets, reduction="sum")
            output = layers_of(plain_model(self.model))(**inputs)
        hidden = output[0].flatten(0, 1).index_select(0, where)
        is_matrix = self.head == "matrix"
        head = MatrixHead(self.model) if is_matrix else OwnHead(self.model, output)
        loss: torch.Tensor = _ChunkedLoss.apply(head, targets, hidden, *head.weights)
        return loss


class _ChunkedLoss(torch.autograd.Function):
    """Summed cross-entropy of `hidden`, (labels, width), with its gradients computed in forward.

    `targets` is (labels,). `weights` are those of the head, None for a missing bias.
    """

    @staticmethod
    def forward(
        ctx: Any,
        head: MatrixHead | OwnHead,
        targets: torch.Tensor,
        hidden: torch.Tensor,
        *weights: torch.Tensor | None,
    ) -> torch.Tensor:
        of_hidden, *of_weights = gradients = [
            torch.zeros_like(tensor) if is_needed and tensor is not None else None
            for tensor, is_needed in zip((hidden, *weights), ctx.needs_input_grad[2:], strict=True)
        ]
        total = torch.zeros((), dtype=exact(hidden.dtype), device=hidden.device)
        for begin in range(0, len(targets), head.num_at_once):
            chunk = slice(begin, begin + head.num_at_once)
            of_rows = None if of_hidden is None else of_hidden[chunk]
            total += head.loss_and_gradients(hidden[chunk], targets[chunk], [of_rows, *of_weights])
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        """Return the gradients of forward, times that of the sum; they are overwritten."""
        (of_sum,) = outer
        return (
            None,
            None,
            *(
                None if tensor is None else tensor.mul_(of_sum.to(tensor.dtype))
                for tensor in ctx.saved_tensors
            ),
        )
