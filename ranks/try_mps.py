"""`python -P -m ranks.try_mps`: compute a gradient on a Mac's GPU, and wait for the result."""

from __future__ import annotations

import torch


def main() -> None:
    """Raise what torch raises if it does not work; it may also never return."""
    weights = torch.randn(64, 64, device="mps", requires_grad=True)
    loss = (torch.randn(8, 64, device="mps") @ weights).relu().sum()
    loss.backward()
    assert weights.grad is not None
    assert torch.isfinite(weights.grad.sum().cpu())


if __name__ == "__main__":
    main()
