"""Arrays as texture units see them: formats, channels and extents, with the vendor's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..._dtypes import NAMES
from ..._errors import Unsupported, said_of
from ...arrays import GpuRef

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMATS: Final = {
    "uint8": 0x01,
    "uint16": 0x02,
    "uint32": 0x03,
    "int8": 0x08,
    "int16": 0x09,
    "int32": 0x0A,
    "float16": 0x10,
    "float32": 0x20,
}
"""``CUarray_format`` of dtypes."""

FLOATS: Final = (0x10, 0x20)
WIDE: Final = (0x03, 0x0A)
"""Whole numbers that are too wide to be read as floats from 0 to 1."""

_CHANNELS: Final = (1, 2, 4)

_LARGEST: Final = {1: (1 << 17,), 2: (1 << 16, 1 << 17), 3: (1 << 14, 1 << 14, 1 << 14)}
"""Texels along each axis of a CUDA array, outermost first, which every device takes."""


class Texels(NamedTuple):
    """An array as texture units see it.

    Attributes:
        extent: texels along each axis, outermost first.
        format: the vendor's number of a channel's type.
        channels: number of channels of a texel.
        nbytes: bytes of a texel.
    """

    extent: tuple[int, ...]
    format: int
    channels: int
    nbytes: int


def texels(ref: GpuRef, channels: object, what: str) -> Texels:
    """Return the texels of an array.

    Args:
        ref: the array.
        channels: number of channels of a texel; more than one are the array's last axis.
        what: name in errors, such as ``"a Texture"``.
    """
    if not isinstance(ref, GpuRef):
        raise TypeError(f"{what} is of a GpuRef, not of {said_of(ref)}")
    name = NAMES[ref.dtype]
    kind = _FORMATS.get(name)
    if kind is None:
        raise Unsupported(
            f"texture units do not know elements of {name}; they know {', '.join(_FORMATS)}"
        )
    if isinstance(channels, bool) or channels not in _CHANNELS:
        raise ValueError(f"channels must be 1, 2 or 4, not {channels!r}")
    assert isinstance(channels, int)
    extent = ref.shape
    if channels > 1:
        if ref.shape[-1:] != (channels,):
            raise ValueError(f"channels={channels} are the last axis, and {ref!r} has another")
        extent = ref.shape[:-1]
    if not 1 <= len(extent) <= 3:
        raise ValueError(f"{what} has one to three axes of texels, and {ref!r} has {len(extent)}")
    return Texels(extent, kind, channels, channels * ref.dtype.itemsize)


def check_extent(extent: Sequence[int]) -> None:
    """Check that a CUDA array may be so large."""
    largest = _LARGEST[len(extent)]
    for axis, (size, most) in enumerate(zip(extent, largest, strict=True)):
        if not 1 <= size <= most:
            raise ValueError(
                f"axis {axis} has {size} texels; a CUDA array of {len(extent)} axes has from 1 to "
                f"{', '.join(map(str, largest))}"
            )
