"""Random words that depend on a key and a position only (Philox 4x32-10, Salmon et al. 2011).

The kernels' ``philox.cuh`` make the same words.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

_ROUNDS: Final = 10
_LOW: Final = np.uint64(0xFFFFFFFF)
_SHIFT: Final = np.uint64(32)
_MULTIPLIERS: Final = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_STEPS: Final = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_WORDS: Final = 4


def words(key: int, position: int, count: int) -> Array:
    """``count`` words of the sequence of ``key``, from ``position`` on, as uint32.

    Word ``4 b + i`` is the ``i``-th of the block whose counter is ``b``.
    """
    first = position // _WORDS
    blocks = -(-(position + count) // _WORDS) - first
    counter = np.arange(blocks, dtype=np.uint64) + np.uint64(first & (2**64 - 1))
    x, y = counter & _LOW, counter >> _SHIFT
    z = w = np.zeros_like(counter)
    k0, k1 = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32 & 0xFFFFFFFF)
    for _ in range(_ROUNDS):
        high, other = _MULTIPLIERS[0] * x, _MULTIPLIERS[1] * z
        x, y, z, w = (
            (other >> _SHIFT) ^ y ^ k0,
            other & _LOW,
            (high >> _SHIFT) ^ w ^ k1,
            high & _LOW,
        )
        k0, k1 = (k0 + _STEPS[0]) & _LOW, (k1 + _STEPS[1]) & _LOW
    flat: Array = np.stack([x, y, z, w], axis=-1).astype(np.uint32).ravel()
    return flat[position - first * _WORDS :][:count]


def threshold(p: float) -> int:
    """Words below it are dropped, so that a share of ``p`` is."""
    return min(round(p * 2**32), 2**32 - 1)


def kept(key: int, position: int, count: int, p: float) -> Array:
    """Which of ``count`` elements a dropout of ``p`` keeps."""
    keep: Array = words(key, position, count) >= threshold(p)
    return keep
