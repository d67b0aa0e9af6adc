"""The memory of the 14B and 32B profiles by hand, from their shapes: nothing of it is traced.

Weights, gradients and states are exact. The step is a formula with constants that were measured or
published, and is within STEP_ERROR.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

GIB = 1024**3
VOCABULARY, HIDDEN, KEYS = 152_064, 5120, 1024  # Qwen2.5; keys and values have 8 heads of 128
TOKENS, LORA_RANK = 4096, 16
BUFFER_BYTES = 2 * 64 * 4  # rotary frequencies, as used and as they were at first
# Bitsandbytes' nf4 with double quantisation: a byte for two weights, one for the scale of 64, four
# for that of 256 scales; a tensor also has both tables, of 16 and 256 values, and an offset.
FOUR_BIT_TENSOR_BYTES = 4 * (16 + 256 + 1)
BF16, FP32 = 2, 4
STEP_ERROR = 0.08
LOGITS_CHUNK_BYTES = 256 * 1024**2  # of one chunk of logits, in float32


@dataclass(frozen=True)
class Shape:
    """What the two models differ in; `layer_bytes` is published (bytes per token and layer)."""

    num_parameters: int
    num_layers: int
    intermediate: int
    layer_bytes: int  # Qwen2.5 with LoRA: the peak of computing a layer again, 262 k and 429 k

    @property
    def linears(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the linear layers of a block."""
        wide = self.intermediate
        attention = [(HIDDEN, HIDDEN), (HIDDEN, KEYS), (HIDDEN, KEYS), (HIDDEN, HIDDEN)]
        return [*attention, (HIDDEN, wide), (HIDDEN, wide), (wide, HIDDEN)]

    def matrices(self) -> Iterator[int]:
        """Yield the size of every matrix of the model."""
        yield from (VOCABULARY * HIDDEN,) * 2
        for _ in range(self.num_layers):
            yield from (inputs * outputs for inputs, outputs in self.linears)

    def vectors(self) -> Iterator[int]:
        """Yield the size of every bias of queries, keys and values, and of every norm."""
        yield HIDDEN
        for _ in range(self.num_layers):
            yield from (HIDDEN, KEYS, KEYS, HIDDEN, HIDDEN)

    def adapters(self) -> Iterator[int]:
        """Yield the size of both matrices of LoRA on every linear layer of every block."""
        for _ in range(self.num_layers):
            for inputs, outputs in self.linears:
                yield from (LORA_RANK * inputs, LORA_RANK * outputs)


SHAPES = {
    "14b": Shape(14_770_033_664, 48, 13_824, 262_000),
    "32b": Shape(32_763_876_352, 64, 27_648, 429_000),
}


def weights_bytes(shape: Shape, method: str) -> int:
    if method == "full":
        return BF16 * shape.num_parameters + BUFFER_BYTES
    adapters = FP32 * sum(shape.adapters())
    if method == "lora":
        return BF16 * shape.num_parameters + adapters + BUFFER_BYTES
    sizes = [inputs * outputs for inputs, outputs in shape.linears] * shape.num_layers
    rest = BF16 * (shape.num_parameters - sum(sizes))
    return sum(map(four_bit_bytes, sizes)) + rest + adapters + BUFFER_BYTES


def four_bit_bytes(numel: int) -> int:
    num_scales = math.ceil(numel / 64)
    return numel // 2 + num_scales + 4 * math.ceil(num_scales / 256) + FOUR_BIT_TENSOR_BYTES


def gradients_bytes(shape: Shape, method: str) -> int:
    return BF16 * shape.num_parameters if method == "full" else FP32 * sum(shape.adapters())


def states_bytes(shape: Shape, method: str, num_ranks: int, *, has_copies: bool) -> int:
    """Return the states of the fullest of `num_ranks` ranks that share them.

    Two averages like the weight and a float32 that counts steps, for each tensor, and a copy in
    float32 of weights in bfloat16. Matrices are dealt out first, then vectors, the largest first,
    to the rank that has least.
    """
    if method == "full":
        in_order = [sorted(shape.matrices(), reverse=True), sorted(shape.vectors(), reverse=True)]
    else:
        in_order = [sorted(shape.adapters(), reverse=True)]
    weight_bytes = 2 * (BF16 if method == "full" else FP32)
    weight_bytes += FP32 if method == "full" and has_copies else 0
    numel, states = [0] * num_ranks, [0] * num_ranks
    for size in (one for sizes in in_order for one in sizes):
        rank = numel.index(min(numel))
        numel[rank] += size
        states[rank] += weight_bytes * size + 4
    return max(states)


def step_bytes(shape: Shape, method: str) -> int:
    """Return activations, logits and temporaries at the peak of a step, within STEP_ERROR."""
    kept = BF16 * HIDDEN * shape.num_layers * TOKENS  # one vector for each token and layer
    if method == "full":  # highest in the loss, which holds a gradient of the whole head
        head = BF16 * VOCABULARY * HIDDEN
        chunk = LOGITS_CHUNK_BYTES * 3 // 2  # in float32, and in bfloat16
        return kept + head + chunk + 6 * BF16 * HIDDEN * TOKENS  # around the last norm
    return kept + shape.layer_bytes * TOKENS  # highest in a block's backward
