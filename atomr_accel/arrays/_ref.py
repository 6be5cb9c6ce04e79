"""Handles to device memory: what programs hold instead of pointers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, SupportsIndex, final

import msgspec
import numpy as np

from .._dtypes import as_dtype
from .._errors import DeviceLost, GpuRefSealed, GpuRefStale, said_of
from ..memory import Block, BlockView, DurableState, StridedView, part_of
from .expressions import Operand
from .views import (
    Key,
    as_shape,
    broadcast,
    diagonals,
    is_contiguous,
    moved,
    regrouped,
    reshaped,
    selected,
    span,
    squeezed,
    strides_of,
    swapped,
    transposed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from ..memory import MemoryMap


class NotEvaluated(TypeError):
    """Signals an expression where an op takes a ref."""


@final
class GpuRef(Operand, msgspec.Struct, eq=False, weakref=True):
    """A handle to an array in device memory: device, generation, shape, dtype.

    It is hashable, cheap to pass in messages, and never a pointer. Refs come from a device
    (``put``, ``empty``, the libraries' results) and are C-contiguous. A ref that is dropped frees
    its memory after the last op that uses it.

    ``ref[10:20]``, ``ref[:, 1]``, ``ref[::-2]``, ``ref.T``, ``ref.reshape(...)`` and
    ``ref.view(dtype)`` return views, as in NumPy. Views share the memory of their ref. It lives
    until the last of them is gone, and freeing or sealing one of them frees or seals all. A library
    passes a view that is not contiguous to its vendor library directly if that accepts one.
    Otherwise the library works on a contiguous copy on the device, and copies results back to the
    view. ``device.copy(view)`` makes a copy to keep. Arguments that NumPy refuses raise its errors.

    Attributes:
        shape: as in NumPy.
        dtype: a ``numpy.dtype``, also for bfloat16 and fp8 (from ``ml_dtypes``).
        nbytes: size of all elements in bytes.
        block: the memory, for libraries: ops are ordered by it, and messages have its address. Of
            a view that is not contiguous it has no address, see ``addressable_block``.
        own_strides: ``strides``, or None if the ref is C-contiguous; quicker to ask.
    """

    block: Block
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    own_strides: tuple[int, ...] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        # Ops rely on the layout of their refs.
        raise AttributeError(
            f"a GpuRef's {name} cannot be set; ref.reshape(...) and ref.view(dtype) give "
            f"another view of the same buffer"
        )

    def on_block(self, block: Block) -> GpuRef:
        """Return the same array in another block, which begins at the first element."""
        return _ref(block, self.shape, self.dtype, self.nbytes, self.own_strides)

    @property
    def addressable_block(self) -> Block:
        """The block with an address, for libraries whose kernels use ``strides``."""
        block = self.block
        return block.plain if type(block) is StridedView else block

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis; as in NumPy."""
        strides = self.own_strides
        return strides_of(self.shape, self.dtype.itemsize) if strides is None else strides

    @property
    def contiguous(self) -> bool:
        """True if the elements follow each other without gaps, in C order."""
        return self.own_strides is None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def generation(self) -> int:
        """The device's generation in which the buffer was made."""
        return self.block.generation

    @property
    def device(self) -> str:
        """The name of the device that owns the buffer."""
        return self.block.memory.device

    @property
    def sealed(self) -> bool:
        """True if the buffer is read-only and survives rebuilds."""
        return self.block.sealed

    @property
    def durable(self) -> bool:
        """True if the buffer can be written and survives rebuilds, if its content is proven."""
        return self.block.durable is not None

    @property
    def digest(self) -> str | None:
        """Digest of the buffer, of which this ref may be a view, as 16 hexadecimal digits.

        A durable buffer has one, of the content after its last write that is proven, and so has a
        sealed buffer after ``Device.verify``. Otherwise it is None.
        """
        state = self.block.durable or self.block.digests
        return state.digest() if isinstance(state, DurableState) else None

    @property
    def is_stale(self) -> bool:
        """True if the content is gone, because of a rebuild or because the buffer was freed."""
        block = self.block
        return block.epoch is None or not (
            block.memory.current(block.epoch) or block.memory.awaits(block.epoch)
        )

    def __getitem__(self, key: Key) -> GpuRef:
        """A view of a part, as NumPy's basic indexing gives it.

        Args:
            key: whole numbers, slices with any step, ``...`` and ``None``.

        Raises:
            IndexError: out of bounds, or more indices than dimensions.
            TypeError: an index array or a mask.
        """
        return self._view(selected, key, _token_of(key))

    @property
    def T(self) -> GpuRef:  # noqa: N802 - NumPy's name
        """A view with the axes in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> GpuRef:  # noqa: N802 - NumPy's name
        """A view with the last two axes exchanged."""
        if len(self.shape) < 2:
            raise ValueError(f"matrix transpose with ndim < 2 is undefined: shape {self.shape}")
        return self.swapaxes(-1, -2)

    def transpose(self, *axes: SupportsIndex | tuple[SupportsIndex, ...] | None) -> GpuRef:
        """Return a view with the axes in another order, like ``numpy.ndarray.transpose``.

        Args:
            *axes: the axes in their new order, or one tuple of them; reversed by default.
        """
        one = len(axes) == 1 and axes[0]  # () is other axes than none
        return self._view(transposed, axes, _token_of(axes[0] if one else axes))

    def swapaxes(self, axis1: SupportsIndex, axis2: SupportsIndex) -> GpuRef:
        """Return a view with two axes exchanged, like ``numpy.ndarray.swapaxes``."""
        return self.transpose(swapped(len(self.shape), axis1, axis2))

    def moveaxis(
        self,
        source: SupportsIndex | tuple[SupportsIndex, ...],
        destination: SupportsIndex | tuple[SupportsIndex, ...],
    ) -> GpuRef:
        """Return a view with axes moved to other places, like ``numpy.moveaxis``."""
        return self.transpose(moved(len(self.shape), source, destination))

    def broadcast_to(self, shape: int | tuple[int, ...]) -> GpuRef:
        """Return a view that repeats elements along new axes and axes of length one.

        It is like ``numpy.broadcast_to``. The view is read-only if elements repeat.
        """
        wanted = as_shape(shape)
        return self.with_layout(wanted, broadcast(self.shape, self.strides, wanted))

    def squeeze(self, axis: SupportsIndex | tuple[SupportsIndex, ...] | None = None) -> GpuRef:
        """Return a view without axes of length one, like ``numpy.squeeze``.

        Args:
            axis: the axes to remove; by default all of length one.
        """
        return self.with_layout(*squeezed(self.shape, self.strides, axis))

    def diagonal(
        self, offset: SupportsIndex = 0, axis1: SupportsIndex = 0, axis2: SupportsIndex = 1
    ) -> GpuRef:
        """Return a view of diagonals, which become the last axis, like ``numpy.diagonal``.

        Unlike NumPy's, it can be written.

        Args:
            offset: distance above the main diagonal.
            axis1: the axis of the matrices' rows.
            axis2: the axis of their columns.
        """
        return self.with_layout(*diagonals(self.shape, self.strides, offset, axis1, axis2))

    def reshape(self, *shape: int | tuple[int, ...]) -> GpuRef:
        """Return a view with another shape of the same size, like ``numpy.ndarray.reshape``.

        Args:
            *shape: the new shape, as numbers or one tuple; one may be -1.

        Raises:
            ValueError: the sizes differ, or the shape needs a copy.
        """
        token = _token_of(shape[0] if len(shape) == 1 else shape)
        known = (self.shape, token)
        new = None if token is None else _SHAPES.get(known)
        if new is None:
            new = reshaped(self.shape, shape)
            if token is not None:
                if len(_SHAPES) >= _MOST_VIEWS:
                    _SHAPES.clear()
                _SHAPES[known] = new
        if self.own_strides is None:
            return GpuRef(self.block, new, self.dtype, self.nbytes)
        strides = regrouped(self.shape, self.own_strides, new)
        if strides is None:
            raise ValueError(
                f"a view of shape {self.shape} and strides {self.own_strides} has no view of shape "
                f"{new}; copy it first: (await device.copy(ref)).reshape({new})"
            )
        return self.with_layout(new, strides)

    def ravel(self) -> GpuRef:
        """Return a view with one axis, like ``numpy.ravel`` but without ever copying.

        Raises:
            ValueError: it would need a copy.
        """
        return self.reshape(-1)

    def view(self, dtype: DTypeLike) -> GpuRef:
        """Return a view of the same bytes with another dtype, like ``numpy.ndarray.view``.

        Args:
            dtype: the new dtype. If its size differs, the last axis becomes longer or shorter.

        Raises:
            TypeError: device memory does not support the dtype.
            ValueError: the last axis does not divide into elements of that size, or has gaps; or an
                element would not begin at a multiple of its size.
        """
        dtype = as_dtype(dtype)
        shape, strides = self.shape, self.own_strides
        size, before = dtype.itemsize, self.dtype.itemsize
        if size != before:
            if not shape:
                raise ValueError(
                    f"a 0-d buffer of {self.dtype.name} cannot be seen as {dtype.name}"
                )
            if strides is not None:
                if strides[-1] != before and shape[-1] != 1:
                    raise ValueError(
                        "To change to a dtype of a different size, the last axis must be "
                        f"contiguous, and here its stride is {strides[-1]}; copy it first"
                    )
                strides = (*strides[:-1], size)
            last, rest = divmod(shape[-1] * before, size)
            if rest:
                raise ValueError(
                    f"the last axis of shape {shape} is {shape[-1] * before} bytes of "
                    f"{self.dtype.name}, which is no whole number of {dtype.name}"
                )
            shape = (*shape[:-1], last)
        if self.block.offset % size:
            raise ValueError(
                f"the view begins {self.block.offset} bytes into its buffer, which is no multiple "
                f"of the {size} bytes of {dtype.name}; copy it first"
            )
        if strides is None:
            return GpuRef(self.block, shape, dtype, self.nbytes)
        if any(stride % size for stride, extent in zip(strides, shape, strict=True) if extent > 1):
            raise ValueError(
                f"elements of the view are {strides} bytes apart, which are no multiples of the "
                f"{size} bytes of {dtype.name}; copy it first"
            )
        contiguous = is_contiguous(shape, strides, size)
        return _ref(
            self.addressable_block, shape, dtype, self.nbytes, None if contiguous else strides
        )

    def _view(
        self, make: Callable[..., _Layout], argument: Any, token: tuple[object, ...] | None
    ) -> GpuRef:
        """Return ``make``'s view for a layout and an argument; ``token`` is its key."""
        known = (make, self.shape, self.own_strides, self.dtype, token)
        made = None if token is None else _VIEWS.get(known)
        if made is None:
            view = self.with_layout(*make(self.shape, self.strides, argument))
            if token is not None:
                if len(_VIEWS) >= _MOST_VIEWS:
                    _VIEWS.clear()
                start = view.block.offset - self.block.offset
                _VIEWS[known] = start, view.shape, view.nbytes, view.own_strides
            return view
        start, shape, nbytes, strides = made
        return _ref(self.block, shape, self.dtype, nbytes, strides, start)

    def with_layout(
        self, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0
    ) -> GpuRef:
        """Return a view of another shape and strides, for libraries; nothing is checked.

        Args:
            shape: the view's shape.
            strides: bytes from one element to the next along each axis.
            start: bytes from this ref's first element to the view's.
        """
        itemsize = self.dtype.itemsize
        contiguous = is_contiguous(shape, strides, itemsize)
        nbytes = math.prod(shape) * itemsize
        kept = None if contiguous else strides
        return _ref(self.block, shape, self.dtype, nbytes, kept, start)

    NOT_AWAITED: ClassVar[str] = (
        "a GpuRef is not awaited, because it is a result; leave out `await`, as before all methods "
        "of a batch or a recording, which return at once"
    )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d GpuRef")
        return self.shape[0]

    def __iter__(self) -> None:
        # Without this, __len__ alone would make list(ref) try integer indices.
        raise TypeError("a GpuRef is not iterable; fetch it first: host = await device.get(ref)")

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        # Also copy.deepcopy comes here.
        raise TypeError(
            "a GpuRef is a handle of this program and cannot be pickled or copied; for another "
            "process: await device.share(ref); for the content: await device.get(ref); for a "
            "second buffer: await device.copy(ref)"
        )

    def __repr__(self) -> str:
        block = self.block
        state = "freed " if block.epoch is None else "stale " if self.is_stale else ""
        sealed = "sealed " if block.sealed else ""
        strides = "" if self.own_strides is None else f"strides {list(self.own_strides)} "
        return (
            f"<GpuRef {state}{sealed}{self.dtype.name}{list(self.shape)} {strides}"
            f"on {self.device}, generation {block.generation}>"
        )


_Layout = tuple[tuple[int, ...], tuple[int, ...]] | tuple[tuple[int, ...], tuple[int, ...], int]
_View = tuple[int, tuple[int, ...], int, tuple[int, ...] | None]

_VIEWS: Final[dict[tuple[object, ...], _View]] = {}
"""Results of indexing and transposing by layout and key, because programs repeat them."""

_SHAPES: Final[dict[tuple[object, ...], tuple[int, ...]]] = {}
"""Results of ``reshape`` by shapes, for the same reason."""

_MOST_VIEWS: Final = 1 << 10

_BOUNDS: Final = frozenset({int, type(None)})
"""Types of the bounds of slices that are remembered."""


_ALL: Final = slice(None)


def _token_of(key: object) -> tuple[object, ...] | None:
    """Return a token that equal keys share, or None if results for the key are not remembered."""
    parts: list[object] = []
    for part in key if type(key) is tuple else (key,):
        kind = type(part)
        if kind is int or part is None or part is Ellipsis:
            parts.append(part)
        elif kind is not slice:
            return None
        elif part == _ALL:
            parts.append(slice)  # which, unlike it, has a hash in all versions
        else:
            start, stop, step = part.start, part.stop, part.step
            if not (type(start) in _BOUNDS and type(stop) in _BOUNDS and type(step) in _BOUNDS):
                return None
            parts.append((start, stop, step))
    return tuple(parts)


def _ref(
    block: Block,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    strides: tuple[int, ...] | None,
    start: int = 0,
) -> GpuRef:
    """Return a ref of any layout that begins ``start`` bytes into ``block``."""
    if block.durable is not None:
        return _durable_ref(block, shape, dtype, nbytes, strides, start)
    if strides is not None:
        if isinstance(block, BlockView):
            start += block.start
            block = block.whole
        block = StridedView(block.memory, 0, 0, None, 0, 0, whole=block, start=start)
    elif start:
        block = part_of(block, start)
    elif type(block) is StridedView:
        block = block.plain
    return GpuRef(block, shape, dtype, nbytes, strides)


def _durable_ref(
    block: Block,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    nbytes: int,
    strides: tuple[int, ...] | None,
    start: int,
) -> GpuRef:
    """Return a ref like ``_ref``, whose block knows the bytes that an op may write by it."""
    start += block.offset
    low, high = (0, nbytes) if strides is None else span(shape, strides, dtype.itemsize)
    kind = BlockView if strides is None else StridedView
    view = kind(block.memory, 0, 0, None, 0, 0, whole=block.base, start=start)
    view.extent = start + low, start + high
    return GpuRef(view, shape, dtype, nbytes, strides)


def no_ref_error(given: object, name: str, expected: str = "a GpuRef") -> TypeError:
    """Return the error for an argument that must be a ref, or as ``expected`` says."""
    message = f"{name} must be {expected}, not {said_of(given)}"
    if isinstance(given, Operand):
        how = (
            f"{name} = await device.evaluate({name})"
            if name.isidentifier()
            else ("await device.evaluate(expression)")
        )
        return NotEvaluated(f"{message}; evaluate it first: {how}")
    if isinstance(given, (list, tuple)) and any(isinstance(each, GpuRef) for each in given):
        message += "; call it for each of them, in a batch to save round trips"
    elif hasattr(type(given), "__array__") or isinstance(given, (bool, int, float, complex, list)):
        how = f": {name} = await device.put({name})" if name.isidentifier() else ", by device.put"
        message += f"; put it on the device first{how}"
    return TypeError(message)


def ref_error(ref: object, memory: MemoryMap, name: str) -> Exception:
    """The error for an argument that is not a usable ref of ``memory``'s device."""
    if not isinstance(ref, GpuRef):
        return no_ref_error(ref, name)
    block = ref.block
    if block.memory is not memory:
        there = block.memory
        wrong = f"{name} must be on {memory.device}, where the op runs, not on {there.said}"
        if there.over is not None:
            return ValueError(f"{wrong}, so its buffers are gone; put the data again")
        if memory.over is not None:
            return DeviceLost(f"{memory.device} {memory.over}; {name} is on {there.device}")
        return ValueError(
            f"{wrong}; `device.copy`, of the device that the op runs on, brings it there"
        )
    if block.epoch is None:
        return GpuRefStale(f"{name} was freed: {ref!r}")
    if memory.awaits(block.epoch):
        return RuntimeError(f"{name} has no content yet: {block.epoch.lacking}")
    if memory.over is not None:
        why = f"{name} is gone: {memory.device} {memory.over}"
        return DeviceLost(why) if block.sealed else GpuRefStale(why)
    state = block.durable or block.digests
    if state is not None and state.lost:
        kind = "sealed" if block.sealed else "durable"
        return GpuRefStale(f"{name} is {kind}, but is not proven: {state.lost}")
    return GpuRefStale(
        f"{name} is of generation {block.generation}, but {memory.device} was rebuilt and is at "
        f"generation {memory.generation}; put the data again, or seal what must survive"
    )


def sealed_error(ref: GpuRef, name: str) -> GpuRefSealed:
    """The error for writing to a sealed ref."""
    return GpuRefSealed(
        f"{name} is sealed, so nothing may write to it: {ref!r}; write to a copy: "
        f"copy = await device.copy({name if name.isidentifier() else 'ref'})"
    )
