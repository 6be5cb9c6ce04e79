"""Tensor maps: descriptions of arrays for the tensor memory accelerator (TMA)."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, final

from ..._dtypes import NAMES
from ..._errors import Unsupported, said_of
from ...arrays import GpuRef
from ...ops import require_readable, require_writable
from .wire.messages import TiledMap

if TYPE_CHECKING:
    import numpy as np

    from ...memory import Block
    from ...ops import Preparer

_TENSOR_MAP: Final = (128, 64)
"""Bytes of a ``CUtensorMap``, and how they are aligned at least: ``cuda.h`` has 64 bytes up to
CUDA 12, and 128 since."""

_KINDS: Final = {
    **dict.fromkeys(("uint8", "int8", "bool", "float8_e4m3fn", "float8_e5m2"), 0),
    **dict.fromkeys(("uint16", "int16"), 1),
    **dict.fromkeys(("uint32",), 2),
    **dict.fromkeys(("int32",), 3),
    **dict.fromkeys(("uint64",), 4),
    **dict.fromkeys(("int64",), 5),
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
"""``CUtensorMapDataType`` of dtypes."""

_FLOATS: Final = range(6, 10)
_SWIZZLES: Final = {None: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS: Final = {None: 0, 64: 1, 128: 2, 256: 3}
_FILLS: Final = {"zeros": 0, "nan": 1}

_MOST_AXES: Final = 5
_MOST_IN_BOX: Final = 256
_MOST_STEP: Final = 8
_LARGEST: Final = 1 << 32
_LARGEST_STRIDE: Final = 1 << 40
_UNIT: Final = 16
"""Bytes in which the accelerator moves and addresses memory."""


@final
@dataclass(frozen=True, slots=True)
class TensorMap:
    """An array as an argument for ``const __grid_constant__ CUtensorMap``.

    The kernel moves boxes of the array to and from shared memory by TMA. The map is encoded
    (``cuTensorMapEncodeTiled``) when the kernel is launched, for the address that the buffer has
    then. So it works in recordings and after rebuilds whenever the buffer does, and a buffer that
    ``replay`` substitutes is substituted here, too. On the CPU backend the kernel's function gets
    the array.

    Sizes are checked when the map is made, and the buffer when the kernel is launched. The buffer
    must not be freed or stale, nor sealed if it is written. It must be contiguous and begin at a
    multiple of 16 bytes.

    Attributes:
        ref: the array, contiguous, with one to five axes.
        box: number of elements of each axis that are moved at a time, outermost first as in the
            shape: 1 to 256, the innermost a multiple of 16 bytes.
        steps: step between the elements taken along each axis, 1 to 8; 1 for the innermost.
        swizzle: bytes within which rows of the box change places in shared memory (32, 64 or
            128), so that reads of columns avoid bank conflicts. The innermost axis of the box
            takes at most that many bytes. None leaves rows in place.
        promotion: smallest number of bytes that are brought to the L2 cache: 64, 128 or 256.
        fill: values beyond the array: ``"zeros"``, or ``"nan"`` for floats.
        written: whether kernels store through it, or only load.
    """

    ref: GpuRef
    box: tuple[int, ...]
    steps: tuple[int, ...] | None = None
    swizzle: Literal[32, 64, 128] | None = None
    promotion: Literal[64, 128, 256] | None = None
    fill: Literal["zeros", "nan"] = "zeros"
    written: bool = True

    declared: ClassVar[str] = "const __grid_constant__ CUtensorMap"

    def __post_init__(self) -> None:
        """Check all that the driver's rules say.

        Raises:
            TypeError: no buffer, or sizes that are no whole numbers.
            ValueError: what ``cuTensorMapEncodeTiled`` refuses.
            Unsupported: elements that the accelerator does not know.
        """
        ref = self.ref
        if not isinstance(ref, GpuRef):
            raise TypeError(f"a TensorMap is of a GpuRef, not of {said_of(ref)}")
        kind = _KINDS.get(NAMES[ref.dtype])
        if kind is None:
            raise Unsupported(f"TMA does not know elements of {ref.dtype.name}")
        axes = len(ref.shape)
        if not 1 <= axes <= _MOST_AXES:
            raise ValueError(f"a TensorMap has 1 to {_MOST_AXES} axes, and {ref!r} has {axes}")
        object.__setattr__(self, "box", _sizes("box", self.box, axes, _MOST_IN_BOX))
        steps = (1,) * axes if self.steps is None else self.steps
        object.__setattr__(self, "steps", _sizes("steps", steps, axes, _MOST_STEP))
        for name, choices in (
            ("swizzle", _SWIZZLES),
            ("promotion", _PROMOTIONS),
            ("fill", _FILLS),
        ):
            if getattr(self, name) not in choices:
                known = ", ".join(map(repr, choices))
                raise ValueError(f"{name} must be one of {known}, not {getattr(self, name)!r}")
        self._check_sizes()
        if self.fill == "nan" and kind not in _FLOATS:
            raise ValueError(f"fill='nan' is for floats, and {ref!r} has {ref.dtype.name}")

    def _check_sizes(self) -> None:
        ref, item = self.ref, self.ref.dtype.itemsize
        for axis, size in enumerate(ref.shape):
            if not 1 <= size <= _LARGEST:
                raise ValueError(f"axis {axis} of {ref!r} has {size} elements; TMA takes 1 to 2^32")
        assert self.steps is not None
        if self.steps[-1] != 1:
            raise ValueError(f"steps is {self.steps}; TMA takes all elements of the innermost axis")
        row = ref.shape[-1] * item
        if len(ref.shape) > 1 and row % _UNIT:
            raise ValueError(
                f"rows of {ref!r} take {row} bytes; TMA wants a multiple of {_UNIT}: pad the rows"
            )
        if math.prod(ref.shape[1:]) * item >= _LARGEST_STRIDE:
            raise ValueError(f"{ref!r} has a stride of 2^40 bytes or more")
        inner = self.box[-1] * item
        if inner % _UNIT:
            raise ValueError(
                f"the innermost axis of box {self.box} takes {inner} bytes of {ref.dtype.name}; "
                f"TMA moves multiples of {_UNIT}"
            )
        if self.swizzle is not None and inner > self.swizzle:
            raise ValueError(
                f"the innermost axis of box {self.box} takes {inner} bytes; with "
                f"swizzle={self.swizzle} it takes {self.swizzle} at most"
            )

    def _fits(self, dtype: np.dtype[Any] | None, size: tuple[int, int] | None) -> bool:
        """Return whether a parameter may be a tensor map."""
        return dtype is None and takes_tensor_maps(size)

    def _message(
        self, preparer: Preparer, name: str, reads: list[Block], writes: list[Block]
    ) -> TiledMap:
        """Return the map in its form in messages.

        The preparer may substitute the buffer, whose block goes to ``reads`` if the kernel only
        loads from it, else to ``writes``.
        """
        ref = preparer.stand_in(self.ref)
        block = (require_writable if self.written else require_readable)(ref, preparer.memory, name)
        (writes if self.written else reads).append(block)
        if block.offset % _UNIT:  # whole buffers begin at multiples of 512
            raise ValueError(f"{name} begins at byte {block.offset}; TMA wants a multiple of 16")
        assert self.steps is not None
        return TiledMap(
            block.address,
            NAMES[ref.dtype],
            _KINDS[NAMES[ref.dtype]],
            ref.shape,
            self.box,
            self.steps,
            _SWIZZLES[self.swizzle],
            _PROMOTIONS[self.promotion],
            _FILLS[self.fill],
        )


def takes_tensor_maps(size: tuple[int, int] | None) -> bool:
    """Return whether a parameter of this size and alignment may be a ``CUtensorMap``."""
    return size is None or (size[0] == _TENSOR_MAP[0] and size[1] >= _TENSOR_MAP[1])


def _sizes(name: str, given: object, axes: int, most: int) -> tuple[int, ...]:
    """Whole numbers for each axis."""
    try:
        sizes = tuple(map(operator.index, given))  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"{name} takes whole numbers, one for each axis, not {given!r}") from None
    if len(sizes) != axes:
        raise ValueError(f"{name} {sizes} is for {len(sizes)} axes; the array has {axes}")
    if not all(1 <= size <= most for size in sizes):
        raise ValueError(f"{name} is {sizes}; each must be from 1 to {most}")
    return sizes
