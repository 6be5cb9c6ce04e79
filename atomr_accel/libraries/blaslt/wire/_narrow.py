"""Narrow types: their names, the blocks of their scales, and rows of bits."""

from __future__ import annotations

from typing import Final

E4M3: Final = "float8_e4m3fn"
E5M2: Final = "float8_e5m2"
E2M1: Final = "float4_e2m1fn"
FP8: Final = (E4M3, E5M2)

BLOCKS: Final = {"nvfp4": 16, "mxfp8": 32}
"""Elements along k that share a scale, where scales come in blocks."""

EXPONENTS: Final = "uint8"
"""The dtype of scales that are powers of two: exponents, counted from -127."""


def mask_width(n: int) -> int:
    """Bytes of a row of bits: the vendor wants multiples of 128 bits."""
    return -(-n // 128) * 16


def block_scale_bytes(rows: int, columns: int) -> int:
    """Bytes of block scales as the vendor has them: tiles of 128 rows and four columns."""
    return -(-rows // 128) * 128 * -(-columns // 4) * 4
