"""The row of ``NODES`` for numbers that have a scale for each block of them (OCP's MX formats)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._graph import DnnTensor, strides_of
from ._node_type import REQUIRED, NodeType

if TYPE_CHECKING:
    from ._node_type import Attributes, Inputs

ELEMENTS: Final = ("float8_e4m3fn", "float8_e5m2")


def _dequantize(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    name = "block_scale_dequantize"
    tensor, scale = inputs["input"], inputs["descale"]
    axis, block = attributes["axis"], attributes["block_size"]
    if tensor.dtype not in ELEMENTS or scale.dtype != "uint8":
        raise TypeError(
            f"{name} takes {' or '.join(ELEMENTS)} and scales as the uint8 that float8_e8m0fnu "
            f"is, not {tensor.dtype} and {scale.dtype}"
        )
    if not 0 <= axis < len(tensor.shape) or block < 1:
        raise ValueError(f"{name}: axis {axis} of {tensor.shape} in blocks of {block}")
    blocks = -(-tensor.shape[axis] // block)
    expected = (*tensor.shape[:axis], blocks, *tensor.shape[axis + 1 :])
    if scale.shape != expected:
        raise ValueError(f"{name}: descale has shape {scale.shape}, not {expected}")
    # Eight bits of exponent and few digits: nothing is lost.
    strides = strides_of(tensor.shape, last=tensor.last)
    return {"y": DnnTensor("bfloat16", tensor.shape, strides, "virtual", last=tensor.last)}


BLOCKS: Final[dict[str, NodeType]] = {
    "block_scale_dequantize": NodeType(
        ("input", "descale"),
        ("y",),
        _dequantize,
        attributes={"axis": REQUIRED, "block_size": 32},
        about="``input``, fp8, times ``2 ** (descale - 127)``, of which there is one, a uint8, for "
        "each ``block_size`` elements along ``axis``; bfloat16",
    ),
}
"""The operations by name."""
