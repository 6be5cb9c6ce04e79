"""Geometry of a kernel: its axes, the elements that are taken at once, its threads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..._dtypes import DTYPES
from ..._errors import Unsupported
from ._lower import BufferPlace, Read, Write
from .wire._program import Access, KernelForm, KernelNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from ._lower import LoweredKernel

    NewScratch = Callable[[int, "np.dtype[Any]"], BufferPlace]

_VECTOR_BYTES: Final = 16
"""Bytes that a thread reads and writes at once."""
_THREADS: Final = 256
_WARP: Final = 32
_MOST_THREADS: Final = 1024
_MANY_BLOCKS: Final = 528
"""Four for each processor of a large device: with fewer, rows are cut into parts."""
_MANY_ELEMENTS: Final = 1 << 19
_REGISTERS: Final = 64
"""Words of a row that a thread keeps."""
_MOST_ITEMS: Final = 8
_FEW_ITEMS: Final = 4
"""Packs of a row that a thread takes, unless that needs more threads than allowed."""
_LEAST_GROUP: Final = 8
"""Threads that together read all of a line of memory."""
_MANY_THREADS: Final = 512
_SHORT_COLUMN: Final = 16
"""Elements of a column that a thread takes before another one shares it."""
_LEAST_STEPS: Final = 4
"""Steps of a loop that are worth a part of their own."""
_MOST_PARTS: Final = 1024
_NARROW: Final = 2**31 - 2**20
"""Indices below this, with some room, are counted in 32 bits."""
_MOST_BLOCKS: Final = 2**31 - 1


class Launching(NamedTuple):
    """A launch, but for addresses and the numbers of the expression.

    Attributes:
        form: the kernel.
        blocks: the number of blocks, in x and y.
        places: the places of operands and outputs, in the order of their addresses.
        numbers: sizes and strides.
        constants: the expression's numbers that it takes.
        in_place: operands and outputs that may be the same memory.
    """

    form: KernelForm
    blocks: tuple[int, int]
    places: tuple[BufferPlace | None, ...]
    numbers: tuple[int, ...]
    constants: tuple[int, ...]
    in_place: frozenset[tuple[int, int]]


class _Flat(NamedTuple):
    """A kernel whose axes are as few as can be: kept ones, then reduced ones."""

    nodes: tuple[KernelNode, ...]
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]
    constants: tuple[int, ...]
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    reduces: bool


def strides_in_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one to the next along each axis of a contiguous array."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def launches_of(lowered: LoweredKernel, new_scratch: NewScratch) -> list[Launching]:
    """Return the launches of a kernel: one, or two if rows are cut into parts."""
    space = lowered.space
    accesses: list[Read | Write] = [*lowered.reads, *lowered.writes]
    kept = _merged(space.kept, space.shape, accesses)
    reduced = _merged(space.reduced, space.shape, accesses)
    if any(extent == 0 for extent, _ in reduced):
        reduced = [(0, (0,) * len(accesses))]
    columns = [*kept, *reduced]
    strides = [tuple(column[1][at] for column in columns) for at in range(len(accesses))]
    inputs = len(lowered.reads)
    flat = _Flat(
        tuple(lowered.nodes),
        tuple(each._replace(strides=strides[at]) for at, each in enumerate(lowered.reads)),
        tuple(
            each._replace(strides=strides[inputs + at], varies=each.varies and bool(reduced))
            for at, each in enumerate(lowered.writes)
        ),
        tuple(lowered.constants),
        tuple(extent for extent, _ in kept),
        tuple(extent for extent, _ in reduced),
        bool(space.reduced),
    )
    if not flat.reduces:
        return [_each(flat)]
    return _reducing(flat, new_scratch)


def _merged(
    axes: Iterable[int], shape: tuple[int, ...], accesses: Sequence[Read | Write]
) -> list[tuple[int, tuple[int, ...]]]:
    """Extents and strides of axes, where those that all go over as one are one."""
    merged: list[tuple[int, tuple[int, ...]]] = []
    for axis in axes:
        extent = shape[axis]
        if extent == 1:
            continue
        steps = tuple(each.strides[axis] for each in accesses)
        if merged:
            before, outer = merged[-1]
            if all(far == near * extent for far, near in zip(outer, steps, strict=True)):
                merged[-1] = (before * extent, steps)
                continue
        merged.append((extent, steps))
    return merged


def _vector(accesses: Iterable[Read | Write], inner: int, extent: int) -> int:
    """Return the number of elements along an axis that are taken at once."""
    along = [each for each in accesses if each.place is not None and each.strides[inner] == 1]
    if not along:
        return 1
    vector = _VECTOR_BYTES // max(each.itemsize for each in along)
    while vector > 1:
        if extent % vector == 0 and all(
            each.alignment % (vector * each.itemsize) == 0
            and all(step % vector == 0 for axis, step in enumerate(each.strides) if axis != inner)
            for each in along
        ):
            break
        vector //= 2
    return max(1, vector)


def _access(each: Read | Write, inner: int | None, *, varies: bool) -> Access:
    step = 0 if inner is None else each.strides[inner]
    vector = each.place is not None and step == 1
    return Access(each.dtype, vector, step == 0, varies)


def _wide(flat: _Flat, elements: int) -> bool:
    extents = (*flat.kept, *flat.reduced)
    accesses: list[Read | Write] = [*flat.reads, *flat.writes]
    furthest = [
        sum(
            abs(step) * (extent - 1)
            for step, extent in zip(each.strides, extents, strict=True)
            if extent
        )
        for each in accesses
    ]
    return max([elements, *furthest]) >= _NARROW


def _launching(
    flat: _Flat,
    form: KernelForm,
    blocks: tuple[int, int],
    head: tuple[int, int, int],
) -> Launching:
    if blocks[0] > _MOST_BLOCKS:
        raise Unsupported(f"a kernel of {blocks[0]} blocks; evaluate it in parts")
    accesses: list[Read | Write] = [*flat.reads, *flat.writes]
    numbers = [*head, *flat.kept, *flat.reduced]
    for each in accesses:
        numbers += each.strides
    in_place = set()
    for write in flat.writes:
        for place in {read.place for read in flat.reads}:
            if place is not None and all(
                read.strides == write.strides for read in flat.reads if read.place == place
            ):
                in_place.add((place.number, write.place.number))
    return Launching(
        form,
        blocks,
        tuple([each.place for each in accesses]),
        tuple(numbers),
        flat.constants,
        frozenset(in_place),
    )


def _each(flat: _Flat) -> Launching:
    """A thread for some elements."""
    total = math.prod(flat.kept)
    inner = len(flat.kept) - 1 if flat.kept else None
    accesses: list[Read | Write] = [*flat.reads, *flat.writes]
    vector = 1 if inner is None else _vector(accesses, inner, flat.kept[inner])
    count = total // vector
    items = 1
    if len(flat.kept) == 1 and count >= _MANY_ELEMENTS:
        items = 2
        # Single elements are fewer bytes under way than packs of them, so a thread takes more.
        most = max(each.itemsize for each in accesses) * vector
        words = sum(max(1, vector * each.itemsize // 4) for each in flat.reads)
        while (
            2 * items * most <= 2 * _VECTOR_BYTES
            and 2 * items * words <= _REGISTERS
            and count >= items * _MANY_ELEMENTS
        ):
            items *= 2
    form = KernelForm(
        flat.nodes,
        tuple([_access(each, inner, varies=False) for each in flat.reads]),
        tuple([_access(each, inner, varies=False) for each in flat.writes]),
        tuple([each.node for each in flat.writes]),
        len(flat.kept),
        0,
        "each",
        vector,
        items,
        1,
        _THREADS,
        split=False,
        wide=_wide(flat, total),
    )
    return _launching(flat, form, (-(-count // (_THREADS * items)), 1), (count, 1, 0))


def _reducing(flat: _Flat, new_scratch: NewScratch) -> list[Launching]:
    kept, reduced = len(flat.kept), len(flat.reduced)
    last_kept, last = kept - 1, kept + reduced - 1
    varying = [
        each for each in flat.reads if any(each.strides[axis] for axis in range(kept, last + 1))
    ]
    rows, length = math.prod(flat.kept), math.prod(flat.reduced)
    beside = sum(each.strides[last_kept] == 1 for each in varying) if kept else 0
    # Overlapping windows go as well beside each other, and one row for all is not read again.
    well = (0, 1) if kept else ()
    along = sum(each.strides[last] == 1 and each.strides[last_kept] not in well for each in varying)
    columns = beside > along
    if columns:
        inner: int | None = last_kept
        accesses: list[Read | Write] = [*flat.reads, *flat.writes]
        vector = _vector(accesses, last_kept, flat.kept[-1])
        steps = length
        wide_row = flat.kept[-1] // vector
        threads = _THREADS
        group = threads // min(_WARP, _power_above(wide_row))
        outer = rows // flat.kept[-1]
        while (  # few threads for short columns, if there are enough of these
            group > 1
            and steps < _SHORT_COLUMN * group
            and wide_row * group // (2 * threads) * outer >= _MANY_BLOCKS
        ):
            group //= 2
        items = 0
        tiles = -(-wide_row // (threads // group))
        blocks = tiles * outer
    else:
        inner = last if reduced else None
        ours: list[Read | Write] = [*varying, *[each for each in flat.writes if each.varies]]
        vector = 1 if inner is None else _vector(ours, inner, flat.reduced[-1])
        steps = length // vector
        group, items = _grouped(steps, vector, varying)
        threads = max(group, _THREADS // 2)
        blocks = -(-rows // (threads // group))
    parts = 1
    if _is_simple(flat) and blocks < _MANY_BLOCKS:
        least = (group if columns or group >= _THREADS else _THREADS) * _LEAST_STEPS
        parts = min(-(-_MANY_BLOCKS // blocks), steps // least, _MOST_PARTS)
        if parts > 1 and not columns:
            group, threads, items = _THREADS, _THREADS, 0
            blocks = rows
    parts = max(1, parts)
    chunk = -(-steps // parts)
    if parts > 1:
        parts = -(-steps // chunk)
    if parts > 1:
        return _in_parts(
            flat, new_scratch, parts, chunk, vector, group, threads, blocks, steps, columns=columns
        )
    form = _form(flat, vector, items, group, threads, columns=columns, split=False)
    return [_launching(flat, form, (blocks, 1), (rows, steps, 0))]


def _form(
    flat: _Flat,
    vector: int,
    items: int,
    group: int,
    threads: int,
    *,
    columns: bool,
    split: bool,
) -> KernelForm:
    kept, reduced = len(flat.kept), len(flat.reduced)
    inner = kept - 1 if columns else kept + reduced - 1 if reduced else None
    elements = math.prod(flat.kept) * max(1, math.prod(flat.reduced))
    reduced_axes = range(kept, kept + reduced)
    return KernelForm(
        flat.nodes,
        tuple(
            _access(each, inner, varies=any(each.strides[axis] for axis in reduced_axes))
            for each in flat.reads
        ),
        tuple(_access(each, inner, varies=each.varies) for each in flat.writes),
        tuple(each.node for each in flat.writes),
        kept,
        reduced,
        "columns" if columns else "rows",
        vector,
        items,
        group,
        threads,
        split=split,
        wide=_wide(flat, elements),
    )


def _power_above(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


def _grouped(steps: int, vector: int, varying: Sequence[Read]) -> tuple[int, int]:
    """Return the threads that share a row, and the steps each keeps; 0 if they do not fit."""
    words = sum(max(1, vector * each.itemsize // 4) for each in varying)
    most = max(1, min(_MOST_ITEMS, _REGISTERS // max(1, words)))
    few = min(_FEW_ITEMS, most)
    if steps <= _WARP * most:
        # Short rows side by side: fewer threads do the work of each row.
        group = min(
            _WARP, max(_power_above(-(-steps // few)), min(_LEAST_GROUP, _power_above(steps)))
        )
    else:
        # Long ones by as few threads as can be, so that there are blocks that read while others
        # wait for each other.
        items = few if steps <= few * _MANY_THREADS else most
        group = min(_MOST_THREADS, max(2 * _WARP, _power_above(-(-steps // items))))
    items = _power_above(-(-steps // group))
    if items > most or not steps:
        return (min(512, group) if steps else 1), 0
    return group, items


def _is_simple(flat: _Flat) -> bool:
    """Return whether one pass over each row suffices: its results can be made of parts."""
    nodes = flat.nodes
    if any(each.varies for each in flat.writes):
        return False
    after: list[bool] = []
    for node in nodes:
        args = () if node.kind in ("load", "index", "scalar") else node.args
        reduced = any(after[arg] for arg in args)
        if node.kind in ("reduce", "arg"):
            if reduced:
                return False
            reduced = True
        after.append(reduced)
    return True


def _in_parts(
    flat: _Flat,
    new_scratch: NewScratch,
    parts: int,
    chunk: int,
    vector: int,
    group: int,
    threads: int,
    blocks: int,
    steps: int,
    *,
    columns: bool,
) -> list[Launching]:
    """Reduce parts of rows first, and these then."""
    rows = math.prod(flat.kept)
    row_strides = strides_in_order(flat.kept)
    partial: list[Write] = []
    found: dict[int, list[Read]] = {}
    for at, node in enumerate(flat.nodes):
        if node.kind not in ("reduce", "arg"):
            continue
        dtypes = [node.dtype]
        if node.kind == "arg":
            dtypes = [flat.nodes[node.args[0]].dtype, "int64"]
        for name in dtypes:
            dtype = DTYPES[name]
            place = new_scratch(parts * rows, dtype)
            none = (0,) * (len(flat.kept) + len(flat.reduced))
            partial.append(Write(place, none, name, dtype.itemsize, 256, at, varies=False))
            found.setdefault(at, []).append(
                Read(place, (*row_strides, rows), name, dtype.itemsize, 256)
            )
    first = flat._replace(writes=tuple(partial))
    form = _form(first, vector, 0, group, threads, columns=columns, split=True)
    one = _launching(first, form, (blocks, parts), (rows, steps, chunk))
    return [one, *_reducing(_of_parts(flat, found, parts), new_scratch)]


def _of_parts(flat: _Flat, found: dict[int, list[Read]], parts: int) -> _Flat:
    """Return the kernel that makes results from the results of parts of rows."""
    nodes: list[KernelNode] = []
    reads: list[Read] = []
    made: dict[int, int] = {}
    # It takes only the numbers that it uses: a launch with others is refused.
    words = sorted({node.args[0] for node in flat.nodes if node.kind == "scalar"})
    numbers = dict(zip(words, flat.constants, strict=True))
    places: dict[int, int] = {}
    constants: list[int] = []
    end = 0

    def put(node: KernelNode) -> int:
        nodes.append(node)
        return len(nodes) - 1

    def scalar(node: KernelNode) -> int:
        nonlocal end
        word = node.args[0]
        if word not in places:
            places[word] = end
            constants.append(numbers[word])
            end += -(-DTYPES[node.dtype].itemsize // 8)
        return put(KernelNode(node.kind, node.name, (places[word],), node.dtype))

    def read(each: Read, kind: str) -> int:
        reads.append(each)
        return put(KernelNode(kind, "", (len(reads) - 1,), each.dtype))  # type: ignore[arg-type]

    kept = len(flat.kept)
    wanted = {write.node for write in flat.writes}
    for at in range(len(flat.nodes) - 1, -1, -1):
        node = flat.nodes[at]
        if at in wanted and node.kind not in ("reduce", "arg", "load", "index", "scalar"):
            wanted.update(node.args)
    for at in sorted(wanted):
        node = flat.nodes[at]
        if at in found:
            args = tuple(read(each, "load") for each in found[at])
            made[at] = put(KernelNode(node.kind, node.name, args, node.dtype))
        elif node.kind in ("load", "index"):
            each = flat.reads[node.args[0]]
            made[at] = read(each._replace(strides=(*each.strides[:kept], 0)), node.kind)
        elif node.kind == "scalar":
            made[at] = scalar(node)
        else:
            args = tuple(made[arg] for arg in node.args)
            made[at] = put(KernelNode(node.kind, node.name, args, node.dtype))
    writes = tuple(
        each._replace(strides=(*each.strides[:kept], 0), node=made[each.node])
        for each in flat.writes
    )
    return flat._replace(
        nodes=tuple(nodes),
        reads=tuple(reads),
        writes=writes,
        reduced=(parts,),
        constants=tuple(constants),
    )
