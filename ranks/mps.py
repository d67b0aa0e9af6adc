"""Whether a Mac's GPU (MPS) computes: a child of the plain run tries it out, as it may hang.

The child is `python -P -m ranks.mps`.
"""

from __future__ import annotations

import subprocess
import sys

TRY_TIMEOUT_S = 90.0  # to import torch from a slow disk, and to compile the first kernels


def why_no_mps(timeout_s: float = TRY_TIMEOUT_S) -> str:
    """Return why MPS cannot be used, or "" if it has just computed a gradient in a child."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "ranks.mps"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it has not computed a small matrix within {timeout_s:.0f} s"
    except OSError as error:
        return f"it could not be tried out: {error}"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return f"a trial failed: {lines[-1] if lines else f'exit code {done.returncode}'}"


def _compute() -> None:
    """Compute a gradient on a Mac's GPU; raise what torch raises, or never return."""
    import torch

    weights = torch.randn(64, 64, device="mps", requires_grad=True)
    loss = (torch.randn(8, 64, device="mps") @ weights).relu().sum()
    loss.backward()
    assert weights.grad is not None
    assert torch.isfinite(weights.grad.sum().cpu())


if __name__ == "__main__":
    _compute()
