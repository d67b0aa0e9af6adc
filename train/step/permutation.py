"""The order of an epoch: each sample once, a pure function of seed and epoch, in little memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np

_LISTED = 1 << 20  # samples: a list of more takes more memory than the rest of a rank's data
_ROUNDS = 8  # 4 are enough to be pseudo-random (Luby and Rackoff 1988) with good round functions


class Permutation(Protocol):
    """Position within the epoch → sample."""

    def __getitem__(self, position: int, /) -> int | np.integer: ...


def permutation(num_samples: int, seed: int, epoch: int, *stream: int) -> Permutation:
    """The order of `epoch`; another one for each `stream`."""
    generator = np.random.default_rng([seed, epoch, *stream])
    if num_samples <= _LISTED:
        listed: Permutation = generator.permutation(num_samples)
        return listed
    return _Computed(num_samples, generator)


class _Computed:
    """A permutation that is computed where it is asked for: a Feistel network.

    It permutes the numbers of an even number of bits; one that falls outside the samples is
    permuted again, until it falls inside (cycle walking: Black and Rogaway 2002).
    """

    def __init__(self, num_samples: int, generator: np.random.Generator) -> None:
        self._num_samples = num_samples
        self._half_bits = ((num_samples - 1).bit_length() + 1) // 2
        self._mask = (1 << self._half_bits) - 1
        self._keys = [int(key) for key in generator.integers(0, 1 << 63, _ROUNDS)]

    def __getitem__(self, position: int) -> int:
        while True:
            left, right = position >> self._half_bits, position & self._mask
            for key in self._keys:
                left, right = right, left ^ (_mixed(right ^ key) & self._mask)
            position = left << self._half_bits | right
            if position < self._num_samples:
                return position


def _mixed(value: int) -> int:
    """64 bits of which each depends on all of `value` (the finaliser of SplitMix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return value ^ value >> 31
