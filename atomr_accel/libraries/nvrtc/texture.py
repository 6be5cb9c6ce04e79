"""Textures and surfaces: how kernels read and write arrays through texture units."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, final

from ..._dtypes import NAMES
from ..._errors import said_of
from ...ops import not_contiguous, require_readable, strided
from ._texels import FLOATS, WIDE, Texels, texels
from .cuda_array import CudaArray
from .wire.messages import SurfaceObject, TextureObject

if TYPE_CHECKING:
    import numpy as np

    from ...arrays import GpuRef
    from ...memory import Block
    from ...ops import Preparer

AddressMode = Literal["wrap", "clamp", "mirror", "border"]

_MODES: Final = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}
"""``CUaddress_mode`` of names."""

_FILTERS: Final = ("point", "linear")
_READS: Final = ("element", "normalized")

_AS_INTEGER: Final = 0x01
_NORMALIZED: Final = 0x02
_SRGB: Final = 0x10
"""``CU_TRSF_READ_AS_INTEGER`` and its like."""

_UINT8: Final = 0x01

_OBJECT_BYTES: Final = 8

_MOST_FETCHED: Final = 1 << 27
"""Texels that ``tex1Dfetch`` reads on every device."""

_MOST_COLUMNS: Final = 1 << 17
_MOST_ROWS: Final = 65_000
_PITCH: Final = 32
"""Rows of a texture over memory begin at multiples of this many bytes."""

_BEGIN: Final = 512
"""Alignment of a texture in bytes. Whole buffers have it."""


def _check_begin(block: Block, name: str) -> None:
    """Check that a view is aligned for textures."""
    if block.offset % _BEGIN:
        raise ValueError(
            f"{name} begins at byte {block.offset} of its buffer; textures want a multiple of "
            f"{_BEGIN}: copy it first, or into a device.nvrtc.cuda_array"
        )


def _takes_objects(dtype: np.dtype[Any] | None, size: tuple[int, int] | None) -> bool:
    """Return whether a parameter may be a texture or surface object, a number of 64 bits."""
    if dtype is not None:
        return NAMES[dtype] == "uint64"
    return size is None or size[0] == _OBJECT_BYTES


@final
@dataclass(frozen=True, slots=True)
class Texture:
    """An array as an argument for ``cudaTextureObject_t``.

    Kernels read it by ``tex1Dfetch``, ``tex1D``, ``tex2D`` and ``tex3D``. Its source is one of:

    - A buffer of one axis, for ``tex1Dfetch``, which takes integer coordinates and cannot filter.
    - A buffer of two axes, for ``tex2D``. Its rows take a multiple of 32 bytes, and a view of a
      buffer begins at a multiple of 512.
    - A ``CudaArray`` of one to three axes, for all of these functions.

    A texture of a buffer is a view, which is read when the kernel runs. It is made
    (``cuTexObjectCreate``) when the kernel is launched, so it works in recordings and after
    rebuilds whenever the buffer does. On the CPU backend the kernel's function gets the array.

    Attributes:
        source: the array.
        address: mode of reads beyond the edges, for all axes or for each, the innermost first as
            in ``tex2D(texture, x, y)``. ``"clamp"`` reads the last texel, and ``"border"`` the
            value ``border``. ``"wrap"`` begins anew and ``"mirror"`` goes back; both need
            ``normalized``.
        filter: ``"point"`` reads one texel. ``"linear"`` weighs neighbouring texels by their
            distances, in 8 bits.
        normalized: coordinates go from 0 to 1, not to the number of texels.
        read: ``"normalized"`` reads integers of 8 and 16 bits as floats from 0 to 1, or from -1
            if they are signed.
        srgb: convert bytes from sRGB; needs ``read="normalized"``.
        border: one value for each channel.
        channels: number of channels of a texel: 2 and 4 are the buffer's last axis. A
            ``CudaArray`` has its own.
    """

    source: GpuRef | CudaArray[Any]
    _: KW_ONLY
    address: AddressMode | tuple[AddressMode, ...] = "clamp"
    filter: Literal["point", "linear"] = "point"
    normalized: bool = False
    read: Literal["element", "normalized"] = "element"
    srgb: bool = False
    border: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    channels: int = 1

    declared: ClassVar[str] = "cudaTextureObject_t"

    def __post_init__(self) -> None:
        """Check all that the driver's rules say.

        Raises:
            ValueError: what ``cuTexObjectCreate`` refuses, or a view with gaps.
            Unsupported: elements that texture units do not know.
        """
        layout = self._layout()
        for name, choices in (("filter", _FILTERS), ("read", _READS)):
            if getattr(self, name) not in choices:
                known = " or ".join(map(repr, choices))
                raise ValueError(f"{name} must be {known}, not {getattr(self, name)!r}")
        for name in ("normalized", "srgb"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        self._check_modes(len(layout.extent))
        self._check_values(layout)
        if not isinstance(self.source, CudaArray):
            self._check_memory(layout)

    def _layout(self) -> Texels:
        if isinstance(self.source, CudaArray):
            layout = self.source._memory.layout
            if self.channels not in (1, layout.channels):
                raise ValueError(f"{self.source!r} has not {self.channels!r}")
            object.__setattr__(self, "channels", layout.channels)
            return layout
        return texels(self.source, self.channels, "a Texture")

    def _check_modes(self, axes: int) -> None:
        modes = (self.address,) * axes if isinstance(self.address, str) else self.address
        if len(modes) != axes:
            raise ValueError(f"address is one mode or {axes}, one for each axis, not {modes!r}")
        for mode in modes:
            if mode not in _MODES:
                raise ValueError(f"address must be {', '.join(map(repr, _MODES))}, not {mode!r}")
            if mode in ("wrap", "mirror") and not self.normalized:
                raise ValueError(f"address={mode!r} needs coordinates from 0 to 1: normalized=True")
        object.__setattr__(self, "address", modes)

    def _check_values(self, layout: Texels) -> None:
        floats = layout.format in FLOATS
        if self.read == "normalized" and (floats or layout.format in WIDE):
            raise ValueError("read='normalized' is for whole numbers of 8 and 16 bits")
        if self.filter == "linear" and not floats and self.read == "element":
            raise ValueError(
                "filter='linear' gives floats: it is for float16, float32 and read='normalized'"
            )
        if self.srgb and (layout.format != _UINT8 or self.read == "element"):
            raise ValueError("srgb=True is for uint8 with read='normalized'")
        try:
            border = tuple(float(value) for value in self.border)
        except (TypeError, ValueError):
            raise TypeError(f"border takes numbers, not {self.border!r}") from None
        if not 1 <= len(border) <= 4:
            raise ValueError(f"border takes a number for each channel, not {len(border)}")
        object.__setattr__(self, "border", (*border, 0.0, 0.0, 0.0)[:4])

    def _check_memory(self, layout: Texels) -> None:
        extent, source = layout.extent, self.source
        assert not isinstance(source, CudaArray)
        wanted = "copy it into a device.nvrtc.cuda_array"
        if strided(source):
            raise not_contiguous(source, "a Texture's buffer")
        _check_begin(source.block, repr(source))
        if len(extent) == 1:
            if self.filter != "point" or self.normalized or self.address != ("clamp",):
                raise ValueError(
                    f"a Texture of {source!r} must have the default filter and modes, "
                    f"because it is for tex1Dfetch; for tex1D {wanted}"
                )
            if extent[0] > _MOST_FETCHED:
                raise ValueError(f"{source!r} has {extent[0]} texels; tex1Dfetch reads 2^27")
        elif len(extent) == 2:
            rows, columns = extent
            if not (1 <= rows <= _MOST_ROWS and 1 <= columns <= _MOST_COLUMNS):
                raise ValueError(
                    f"{source!r} has {rows} rows of {columns} texels; a Texture of a buffer has "
                    f"from 1 to {_MOST_ROWS} and {_MOST_COLUMNS}"
                )
            if columns * layout.nbytes % _PITCH:
                raise ValueError(
                    f"rows of {source!r} take {columns * layout.nbytes} bytes; texture units want "
                    f"a multiple of {_PITCH}: pad the rows, or {wanted}"
                )
        else:
            raise ValueError(f"{source!r} has three axes of texels: {wanted}")
        if not math.prod(extent):
            raise ValueError(f"{source!r} has no texels")

    def _fits(self, dtype: np.dtype[Any] | None, size: tuple[int, int] | None) -> bool:
        return _takes_objects(dtype, size)

    def _message(
        self, preparer: Preparer, name: str, reads: list[Block], writes: list[Block]
    ) -> TextureObject:
        """Return the texture in its form in messages.

        ``reads`` gets the block of the array, which the preparer may substitute.
        """
        del writes
        layout, array, address = self._layout(), 0, 0
        source = self.source
        if isinstance(source, CudaArray):
            reads.append(preparer.obtain(source._memory.there))
            array = source._memory.number
        else:
            source = preparer.stand_in(source)
            block = require_readable(source, preparer.memory, name)
            _check_begin(block, name)  # of what stands for it
            reads.append(block)
            address = block.address
        flags = (
            (_AS_INTEGER if self.read == "element" else 0)
            | (_NORMALIZED if self.normalized else 0)
            | (_SRGB if self.srgb else 0)
        )
        modes = tuple(_MODES[mode] for mode in self.address)
        return TextureObject(
            address,
            array,
            source.shape,
            NAMES[source.dtype],
            layout.extent,
            layout.format,
            layout.channels,
            modes,
            self.filter == "linear",
            flags,
            self.border,
        )


@final
@dataclass(frozen=True, slots=True)
class Surface:
    """A ``CudaArray`` as an argument for ``cudaSurfaceObject_t``, which kernels write to.

    ``surf2Dread`` and ``surf2Dwrite`` and their like; their x counts bytes. On the CPU backend the
    kernel's function gets the array.

    Attributes:
        source: the array, made with ``surface=True``.
    """

    source: CudaArray[Any]

    declared: ClassVar[str] = "cudaSurfaceObject_t"

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            ValueError: it was made without ``surface=True``.
        """
        if not isinstance(self.source, CudaArray):
            raise TypeError(f"a Surface is of a CudaArray, not of {said_of(self.source)}")
        if not self.source.surface:
            raise ValueError(f"{self.source!r} was made without surface=True")

    def _fits(self, dtype: np.dtype[Any] | None, size: tuple[int, int] | None) -> bool:
        return _takes_objects(dtype, size)

    def _message(
        self, preparer: Preparer, name: str, reads: list[Block], writes: list[Block]
    ) -> SurfaceObject:
        """Return the surface in its form in messages; ``writes`` gets its block."""
        del name, reads
        memory = self.source._memory
        writes.append(preparer.obtain(memory.there))
        return SurfaceObject(memory.number)
