"""AdamW for weights in bfloat16, which would lose every change below 1/512 of a weight.

A weight in bfloat16 has 8 significant bits: adding less than half of the last one leaves it as it
is, and updates of fine-tuning mostly are less. Two remedies. `master`: a copy in float32 is what is
updated, and the weight is that copy, rounded; 4 bytes more for each weight. `stochastic`: the
updated weight is rounded up or down at random, by where it lies between the two, so that it is
right on average; no memory.

The update itself is torch's fused AdamW, or bitsandbytes' of 8 bits, in float32 and a piece of a
parameter at a time. The states of AdamW stay in bfloat16, as they are without a remedy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch.optim.adamw import adamw

from train.update.rounding import round_at_random

Remedy = Literal["master", "stochastic"]
MASTER = "master"  # the key of the copy in float32, among a parameter's states
_COUNT = "num_rounded"  # the key of the number of updates so far, which the noise depends on
_EPS = 1e-8  # torch's own, and bitsandbytes'
# Weights updated at once: temporaries take 20 bytes for each, 320 MiB together.
_PIECE = 2**24


class Remedied:
    """What both optimizers below have in common: where the update goes, and how it is rounded."""

    def prepare(self, parameters: Sequence[torch.nn.Parameter], remedy: Remedy, seed: int) -> None:
        """Take the order of all `parameters`, of every rank, and the seed, for the noise."""
        self.remedy, self._seed = remedy, seed
        self._numbers = {id(p): number for number, p in enumerate(parameters)}

    def exact(self, p: torch.Tensor, state: dict[str, Any]) -> torch.Tensor | None:
        """Return the copy of `p` in float32, made if there is none yet; None if none is kept."""
        if self.remedy != "master" or p.dtype == torch.float32:
            return None
        if MASTER not in state:
            state[MASTER] = p.detach().float()
        master: torch.Tensor = state[MASTER]
        return master

    def noise(self, p: torch.Tensor, state: dict[str, Any]) -> torch.Generator | None:
        """Return the source of the noise for this update of `p`; None if none is needed.

        It depends on the seed, the parameter and the number of updates alone, so it is the same on
        every rank, and after a restart.
        """
        if self.remedy != "stochastic" or p.dtype == torch.float32:
            return None
        count = state[_COUNT] = state.get(_COUNT, 0) + 1
        text = f"{self._seed} {self._numbers[id(p)]} {count}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        device = "cpu" if p.is_meta else p.device
        # A generator on the CPU uses 32 bits of its seed only.
        return torch.Generator(device).manual_seed(int.from_bytes(digest[:4]))

    @staticmethod
    def write(new: torch.Tensor, into: torch.Tensor, noise: torch.Generator | None) -> None:
        """Write updated weights, in float32, into those in bfloat16; with noise `new` is lost."""
        if new is into:
            return
        for some, into_some in pieces([new, into]):
            if noise is not None:
                round_at_random(some, noise)
            into_some.copy_(some)


class Bf16AdamW(torch.optim.Optimizer, Remedied):
    """AdamW (Loshchilov & Hutter 2019), by torch's fused kernel, with a remedy for bfloat16.

    Its states have the names and dtypes of torch's own. Parameters in float32 are updated as by
    torch's own, to the last bit.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float],
        order: Sequence[torch.nn.Parameter],
        remedy: Remedy,
        seed: int,
        weight_decay: float = 0.0,
    ) -> None:
        """Take torch's own arguments, and those of `Remedied.prepare`."""
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.prepare(order, remedy, seed)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient, in place."""
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)

    def _update(self, p: torch.Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[p]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        whole = [p, p.grad, state["exp_avg"], state["exp_avg_sq"]]
        if (exact := self.exact(p, state)) is not None:
            whole.append(exact)
        noise = self.noise(p, state)
        for piece in pieces(whole):
            self._update_piece(*piece, step=state["step"].clone(), group=group, noise=noise)
        state["step"] += 1

    def _update_piece(
        self,
        into: torch.Tensor,
        gradient: torch.Tensor,
        *states: torch.Tensor,
        step: torch.Tensor,
        group: Mapping[str, Any],
        noise: torch.Generator | None,
    ) -> None:
        """Update `into`; `states` are its two averages, and its copy in float32 if it has one."""
        averages, exact = states[:2], states[2:]
        new = exact[0] if exact else into.float()
        in_float = [average.float() for average in averages]
        adamw(
            [new],
            [gradient.float()],
            in_float[:1],
            in_float[1:],
            [],
            [step],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=_EPS,
            maximize=False,
        )
        for average, updated in zip(averages, in_float, strict=True):
            if average is not updated:
                average.copy_(updated)
        in_float.clear()
        self.write(new, into, noise)


def pieces(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the same rows of `tensors`, which have one shape, of about `_PIECE` numbers at a time.

    They are views, whatever the strides.
    """
    first = tensors[0]
    if first.dim() == 0 or first.numel() <= _PIECE:
        yield tuple(tensors)
        return
    num_rows = max(1, _PIECE * first.shape[0] // first.numel())
    yield from zip(*(tensor.split(num_rows) for tensor in tensors), strict=True)


def eight_bit_kind() -> type[torch.optim.Optimizer]:
    """Return bitsandbytes' AdamW of 8 bits with a remedy; a parameter is updated as a whole.

    Importing bitsandbytes initialises CUDA if there is a GPU.
    """
    from bitsandbytes.optim.adamw import AdamW8bit

    class Bf16AdamW8bit(AdamW8bit, Remedied):
        """AdamW with states of a byte, in blocks (Dettmers et al. 2022), with a remedy."""

        def __init__(
            self,
            params: Any,
            *,
            order: Sequence[torch.nn.Parameter],
            remedy: Remedy,
            seed: int,
            **options: Any,
        ) -> None:
            """Take the arguments of AdamW8bit, and those of `Remedied.prepare`."""
            super().__init__(params, **options)
            self.prepare(order, remedy, seed)

        def update_step(self, group: Any, p: torch.Tensor, gindex: int, pindex: int) -> None:
            """Update `p`; bitsandbytes calls this for each parameter that has a gradient."""
            if p.dtype == torch.float32:
                super().update_step(group, p, gindex, pindex)
                return
            state, gradient = self.state[p], p.grad
            assert gradient is not None
            noise, exact = self.noise(p, state), self.exact(p, state)
            new = p.detach().float() if exact is None else exact
            new.grad = gradient.float()
            self.state[new] = state
            try:
                super().update_step(group, new, gindex, pindex)
            finally:
                del self.state[new]
                new.grad = None
            self.write(new, p, noise)

    return Bf16AdamW8bit


def remedied(
    kind: Literal["adamw", "adamw-8bit"],
    order: Sequence[torch.nn.Parameter],
    remedy: Remedy,
    seed: int,
) -> Callable[..., torch.optim.Optimizer]:
    """Return a constructor of the optimizer with a remedy, called like that of torch's AdamW."""
    made: Any = Bf16AdamW if kind == "adamw" else eight_bit_kind()
    return partial(made, order=order, remedy=remedy, seed=seed)


def fitted(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return the saved states of a parameter without what this optimizer does not use.

    A missing copy in float32 is made from the weight at the next step.
    """
    unused = set[str]()
    remedy = getattr(optimizer, "remedy", None)
    if remedy != "master":
        unused.add(MASTER)
    if remedy != "stochastic":
        unused.add(_COUNT)
    return {key: value for key, value in state.items() if key not in unused}


def num_without_master(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of parameters that were resumed without the copy that will be updated."""
    if getattr(optimizer, "remedy", None) != "master":
        return 0
    states = optimizer.state.items()
    return sum(p.dtype != torch.float32 and MASTER not in state for p, state in states)
