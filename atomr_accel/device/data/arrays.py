"""Buffers made and filled on the device: what a device, a batch and a recording all have."""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._dtypes import NUMBER_KINDS, as_dtype, number_kind
from ..._errors import said_of
from ...arrays import GpuRef, as_shape
from ...arrays.expressions import Operand
from ...libraries.array.evaluate import Evaluating
from ...ops import (
    ARRAY_LANE,
    D,
    Request,
    Submission,
    op,
    overlap,
    require_readable,
    require_writable,
    strided,
)
from ...ops import copying as copy_strided
from ...wire import Copy, Fill

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...memory import MemoryMap
    from ...ops import DeviceView, Preparer

Shape = int | tuple[int, ...]
Number = bool | int | float | complex | np.generic


class Arrays(Evaluating[D]):
    """Methods that make and fill buffers, as in NumPy."""

    @op
    def empty(self, shape: Shape, dtype: DTypeLike = np.float64) -> Request[GpuRef]:
        """Make a buffer with undefined content, like ``numpy.empty``.

        Args:
            shape: its shape, one number or several.
            dtype: any of NumPy's fixed-size numbers or bool, bfloat16, fp8 or fp4.

        Returns:
            A new ref, C-contiguous.

        Raises:
            ValueError: a dimension that is negative, or beyond 64 bits.
            TypeError: a shape that is not made of whole numbers, or a dtype that device memory does
                not support, such as objects.
        """
        kind, sizes = as_dtype(dtype), as_shape(shape)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            return Submission(None, (), (), preparer.output(sizes, kind))

        return Request(self.home.memory_lane, "empty", prepare)

    @op
    def zeros(self, shape: Shape, dtype: DTypeLike = np.float64) -> Request[GpuRef]:
        """Make a buffer of zeros, like ``numpy.zeros``.

        Arguments and errors are those of ``empty``.
        """
        kind = as_dtype(dtype)
        return self._full(shape, bytes(kind.itemsize), kind)

    @op
    def full(
        self, shape: Shape, fill_value: Number, dtype: DTypeLike | None = None
    ) -> Request[GpuRef]:
        """Make a buffer filled with one value, like ``numpy.full``.

        Args:
            shape: its shape.
            fill_value: a number, as for ``fill``.
            dtype: its dtype; by default that of ``numpy.array(fill_value)``.

        Returns:
            A new ref.
        """
        kind = as_dtype(np.asarray(fill_value).dtype if dtype is None else dtype)
        return self._full(shape, element_of(fill_value, kind), kind)

    @op
    def fill(self, ref: GpuRef, value: Number) -> Request[GpuRef]:
        """Set every element of a buffer, or of any view of it, to one value.

        Args:
            ref: the buffer.
            value: a number, which becomes the buffer's dtype as in ``numpy.ndarray.fill``: integers
                lose the fractional part, and floats are rounded.

        Returns:
            ``ref``.

        Raises:
            OverflowError: ``value`` is out of the range of the buffer's integers.
            ValueError: ``value`` is an array, or NaN for integers; the ref is of another device, or
                made by ``broadcast_to``.
            TypeError: ``value`` is not a number, or complex for a real buffer.
        """
        if strided(ref):
            return self._fill_strided(ref, value)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            block = require_writable(ref, preparer.memory, "ref")
            message = Fill(block.address, ref.nbytes, element_of(value, ref.dtype))
            return Submission(message, (), (block,), ref)

        return Request(self.home.memory_lane, "fill", prepare)

    def _fill_strided(self, ref: GpuRef, value: Number) -> Request[GpuRef]:
        """Fill a view by repeating one element, which is filled first."""
        lane = self.home.memory_lane

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            require_writable(ref, preparer.memory, "ref", strided=True)
            one = preparer.output((), ref.dtype)
            message = Fill(one.block.address, one.nbytes, element_of(value, ref.dtype))

            def prepare_one(_preparer: Preparer) -> Submission[GpuRef]:
                return Submission(message, (), (one.block,), one)

            submission = copy_strided(one.broadcast_to(ref.shape), ref).prepare(preparer)
            return submission.around([Request(lane, "fill", prepare_one)])

        return Request(ARRAY_LANE, "fill", prepare)

    def _full(self, shape: Shape, element: bytes, dtype: np.dtype[Any]) -> Request[GpuRef]:
        sizes = as_shape(shape)

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            ref = preparer.output(sizes, dtype)
            message = Fill(ref.block.address, ref.nbytes, element)
            return Submission(message, (), (ref.block,), ref)

        return Request(self.home.memory_lane, "fill", prepare)


def copying(device: DeviceView, src: GpuRef, dst: GpuRef | None) -> Request[GpuRef]:
    """The request to copy one buffer of a device to another."""

    def prepare_strided(preparer: Preparer) -> Submission[GpuRef]:
        require_readable(src, preparer.memory, "src", strided=True)
        if dst is not None:
            check_pair(src, dst, preparer.memory)
        return copy_strided(src, dst, ("src", "dst")).prepare(preparer)

    if strided(src, dst):
        return Request(ARRAY_LANE, "copy", prepare_strided)

    def prepare(preparer: Preparer) -> Submission[GpuRef]:
        source = require_readable(src, preparer.memory, "src")
        if dst is None:
            target = preparer.output(src.shape, src.dtype)
        else:
            check_pair(src, dst, preparer.memory)
            target = dst
        message = Copy(target.block.address, source.address, src.nbytes)
        return Submission(message, (source,), (target.block,), target)

    return Request(device.memory_lane, "copy", prepare)


def check_pair(src: GpuRef, dst: GpuRef, memory: MemoryMap) -> None:
    """``dst`` can take what ``src`` holds."""
    require_writable(dst, memory, "dst", strided=True)
    check_like(dst, src.shape, src.dtype, "dst", "src")
    if overlap(src, dst):
        raise ValueError("dst shares memory with src, which the copy would overwrite")


def check_like(
    ref: GpuRef, shape: tuple[int, ...], dtype: np.dtype[Any], name: str, other: str
) -> None:
    """``ref`` has the shape and dtype of ``other``."""
    if ref.shape != shape:
        raise ValueError(f"{name} must have the shape of {other}, {shape}, not {ref.shape}")
    if ref.dtype is not dtype:
        raise TypeError(
            f"{name} must have the dtype of {other}, {dtype.name}, not {ref.dtype.name}"
        )


def element_of(value: Any, dtype: np.dtype[Any]) -> bytes:
    """A number as the bytes of an element; see ``Arrays.fill``."""
    if isinstance(value, Operand):
        raise TypeError(
            f"the value must be a number, not {said_of(value)}; to write one buffer to another: "
            "await device.copy(value, ref)"
        )
    if isinstance(value, CoroutineType):
        raise TypeError(f"the value must be a number, not {said_of(value)}")
    scalar = np.asarray(value)
    if scalar.ndim:
        raise ValueError(
            f"the value must be a scalar, not of shape {scalar.shape}; to write an array: "
            "await device.copy(await device.put(value), ref)"
        )
    if scalar.dtype is dtype:
        return scalar.tobytes()
    number: Any = value if isinstance(value, int) else scalar[()]
    kind = number_kind(scalar.dtype)
    if kind not in NUMBER_KINDS and not isinstance(value, int):
        raise TypeError(f"the value must be a number, not {value!r}")
    if kind == "c" and dtype.kind != "c":
        raise TypeError(f"the value for a buffer of dtype {dtype.name} must be real, not {value!r}")
    if dtype.kind in "iu":
        number, info = int(number), np.iinfo(dtype)  # which refuses NaN and infinity
        if not info.min <= number <= info.max:
            raise OverflowError(
                f"{value!r} is out of bounds for {dtype.name}, which goes from {info.min} to "
                f"{info.max}"
            )
    elif dtype.isbuiltin != 1:
        number = float(number)
    element = np.empty((), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        element[()] = number
    return element.tobytes()
