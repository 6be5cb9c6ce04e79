"""Values of one kernel, for one element, over a space of indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, final

from ..._dtypes import NAMES
from ..._errors import Unsupported
from .wire._program import KernelNode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .graph import GraphValue

Map = tuple[int | None, ...]
"""Axes of the space, one for each axis of a value; None if all of that axis see one element."""


class BufferPlace(NamedTuple):
    """Which buffer: an operand, an output, or one in between."""

    kind: Literal["operand", "output", "scratch"]
    number: int


class StoredValue(NamedTuple):
    """A value in a buffer.

    Attributes:
        place: the buffer of the value.
        strides: elements.
        alignment: the alignment of its address, in bytes.
    """

    place: BufferPlace
    strides: tuple[int, ...]
    alignment: int


class Target(NamedTuple):
    """A wanted value and its buffer; attributes as those of ``StoredValue``."""

    value: int
    place: BufferPlace
    strides: tuple[int, ...]
    alignment: int


class Read(NamedTuple):
    """Input of a kernel.

    Attributes:
        place: its buffer; None for values that come from the index alone.
        strides: its strides along each axis of the space, in elements.
        dtype: its dtype's name.
        itemsize: bytes of an element.
        alignment: the alignment of its address, in bytes.
    """

    place: BufferPlace | None
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    alignment: int


class Write(NamedTuple):
    """Output of a kernel; further attributes as those of ``Read``.

    Attributes:
        node: the node whose value goes there.
        varies: whether it has all elements of a row.
    """

    place: BufferPlace
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    alignment: int
    node: int
    varies: bool


@final
class Space(NamedTuple):
    """The indices that a kernel goes over.

    Attributes:
        shape: extents of all axes.
        reduced: the axes that are reduced.
    """

    shape: tuple[int, ...]
    reduced: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that are not reduced."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.reduced)

    def axes_of(self, shape: tuple[int, ...]) -> tuple[Map] | None:
        """Return the axes of the space that a result of ``shape`` has; None if it does not fit."""
        if shape == self.shape:
            return (tuple(range(len(shape))),)
        kept = self.kept
        if shape == tuple(self.shape[axis] for axis in kept):
            return (kept,)
        with_ones = tuple(
            1 if axis in self.reduced else extent for axis, extent in enumerate(self.shape)
        )
        if shape == with_ones:
            axes: Map = tuple(None if axis in self.reduced else axis for axis in range(len(shape)))
            return (axes,)
        return None


def is_reduction(value: GraphValue) -> bool:
    """Return whether a value is a reduction."""
    return value.kind in ("reduce", "arg")


@final
class LoweredKernel:
    """Values of one kernel, with its inputs and outputs.

    ``stored`` values are in buffers already. ``only`` is the one reduction that is part of it, by
    default all that fit.

    Attributes:
        nodes: its values.
        reads: its inputs.
        writes: its outputs.
        constants: the numbers that it takes.
    """

    def __init__(
        self,
        values: Sequence[GraphValue],
        operands: Sequence[Any],
        stored: Mapping[int, StoredValue],
        store: Callable[[int], StoredValue],
        space: Space,
        only: int | None = None,
    ) -> None:
        self._values = values
        self._operands = operands
        self._stored = stored
        self._store = store
        self._only = only
        self._known: dict[tuple[int, Map], int] = {}
        self._same: dict[tuple[object, ...], int] = {}
        self._places: dict[Read, int] = {}
        self._scalars: dict[int, int] = {}
        self.space: Final = space
        self.nodes: Final[list[KernelNode]] = []
        self.reads: Final[list[Read]] = []
        self.writes: Final[list[Write]] = []
        self.constants: Final[list[int]] = []
        self.words = 0

    def add(self, target: Target) -> None:
        """Have the kernel compute a value, and write it."""
        value = self._values[target.value]
        found = self.space.axes_of(value.shape)
        assert found is not None
        (axes,) = found
        node = self._node(target.value, axes)
        strides = [0] * len(self.space.shape)
        for axis, stride in zip(axes, target.strides, strict=True):
            if axis is not None:
                strides[axis] = stride
        varies = axes == tuple(range(len(self.space.shape))) and bool(self.space.reduced)
        self.writes.append(
            Write(
                target.place,
                tuple(strides),
                NAMES[value.dtype],
                value.dtype.itemsize,
                target.alignment,
                node,
                varies,
            )
        )

    def _node(self, at: int, axes: Map) -> int:
        value = self._values[at]
        axes = tuple(
            None if extent == 1 else axis for axis, extent in zip(axes, value.shape, strict=True)
        )
        key = (at, axes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(at, value, axes)
        return found

    def _made(self, at: int, value: GraphValue, axes: Map) -> int:
        stored = self._stored.get(at)
        if stored is not None:
            return self._load(stored, value, axes)
        dtype = NAMES[value.dtype]
        match value.kind:
            case "operand":
                layout = self._operands[value.args[0]]
                itemsize = value.dtype.itemsize
                if any(stride % itemsize for stride in layout.strides):
                    raise Unsupported(
                        f"a view of {dtype} whose elements are not whole numbers of {itemsize} "
                        "bytes apart; copy it first"
                    )
                strides = tuple(stride // itemsize for stride in layout.strides)
                place = BufferPlace("operand", value.args[0])
                return self._load(StoredValue(place, strides, layout.alignment), value, axes)
            case "constant":
                return self._add(
                    ("scalar", value.args[0]),
                    KernelNode("scalar", "", (self._scalar(value),), dtype),
                )
            case "index":
                (axis,) = value.axes
                steps = [0] * len(self.space.shape)
                if axes[axis] is not None:
                    steps[axes[axis] or 0] = 1
                return self._read("index", Read(None, tuple(steps), dtype, 8, 256))
            case "view":
                return self._node(value.args[0], self._seen(value, axes))
            case "reduce" | "arg":
                return self._reduced(at, value, axes)
        args = tuple([self._node(arg, self._aligned(arg, value, axes)) for arg in value.args])
        return self._add(
            (value.kind, value.name, args, dtype), KernelNode(value.kind, value.name, args, dtype)
        )

    def _add(self, key: tuple[object, ...], node: KernelNode) -> int:
        found = self._same.get(key)
        if found is None:
            found = self._same[key] = len(self.nodes)
            self.nodes.append(node)
        return found

    def _scalar(self, value: GraphValue) -> int:
        """Return the word of the kernel's numbers at which a constant begins."""
        number = value.args[0]
        if number not in self._scalars:
            self._scalars[number] = self.words
            self.constants.append(number)
            self.words += -(-value.dtype.itemsize // 8)
        return self._scalars[number]

    def _load(self, stored: StoredValue, value: GraphValue, axes: Map) -> int:
        strides = [0] * len(self.space.shape)
        for axis, stride in zip(axes, stored.strides, strict=True):
            if axis is not None:
                strides[axis] += stride
        dtype = value.dtype
        read = Read(stored.place, tuple(strides), NAMES[dtype], dtype.itemsize, stored.alignment)
        return self._read("load", read)

    def _read(self, kind: Literal["load", "index"], read: Read) -> int:
        number = self._places.get(read)
        if number is None:
            number = self._places[read] = len(self.reads)
            self.reads.append(read)
        return self._add((kind, number), KernelNode(kind, "", (number,), read.dtype))

    def _aligned(self, arg: int, value: GraphValue, axes: Map) -> Map:
        """The axes of an argument that broadcasts."""
        shape = self._values[arg].shape
        return axes[len(value.shape) - len(shape) :]

    def _seen(self, value: GraphValue, axes: Map) -> Map:
        shape = self._values[value.args[0]].shape
        found: list[int | None] = [None] * len(shape)
        for axis, of in zip(axes, value.axes, strict=True):
            if of >= 0:
                found[of] = axis
        return tuple(found)

    def _reduced(self, at: int, value: GraphValue, axes: Map) -> int:
        inside = self._inside(at, value, axes)
        if inside is None:
            return self._load(self._store(at), value, axes)
        arg = self._node(value.args[0], inside)
        dtype = NAMES[value.dtype]
        return self._add(
            (value.kind, value.name, arg, dtype), KernelNode(value.kind, value.name, (arg,), dtype)
        )

    def _inside(self, at: int, value: GraphValue, axes: Map) -> Map | None:
        """Return the axes of a reduction's operand; None if the reduction is not in this kernel."""
        space = self.space
        if not space.reduced or (self._only is not None and at != self._only):
            return None
        shape = self._values[value.args[0]].shape
        if tuple(shape[axis] for axis in value.axes) != tuple(
            space.shape[axis] for axis in space.reduced
        ):
            return None
        rows = iter(
            [axis for number, axis in enumerate(axes) if number not in value.axes]
            if value.keepdims
            else axes
        )
        places = dict(zip(value.axes, space.reduced, strict=True))
        inside = tuple(
            places[number] if number in places else next(rows) for number in range(len(shape))
        )
        kept = {axis for number, axis in enumerate(inside) if number not in places}
        wanted = {axis for axis in space.kept if space.shape[axis] != 1}
        return inside if kept - {None} == wanted else None
