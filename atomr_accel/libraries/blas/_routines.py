"""Levels 1 to 3 in the caller: one check, which walks through the roles of a routine's row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..._dtypes import DTYPES
from ...arrays import GpuRef
from ...memory import origin
from ...ops import (
    D,
    Request,
    Submission,
    not_contiguous,
    require_dtype,
    require_no_alias,
    require_rank,
    require_readable,
    require_shape,
    require_writable,
    strided,
)
from ...wire.matrices import lay
from ...wire.options import flag, whole
from .checks import (
    LANE,
    UINT8,
    BlasPart,
    on_the_right,
    operation,
    place_scalars,
    require_kind,
    require_matrix,
    require_numbers,
    require_terms,
    scalar,
    scales_nothing,
)
from .wire._messages import RunRoutine, Scalar
from .wire._rows import REAL_OF, ROWS, Row, RowOperand, packed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from ...memory import Block
    from ...ops import Preparer


Given = dict[str, Any]
"""The arguments of a call, by name."""


class _RoutinePlan(NamedTuple):
    """A checked call, without its buffers.

    Attributes:
        dtype, sizes, steps: of the message.
        starts: for each operand, the bytes from its first element to its first in memory.
        absent: positions, shapes and dtypes of the results to make.
        numbers: names of scalars, their dtypes, True for a real one, and their dtypes on the
            device.
        clear: True if results begin with zeros.
        scratch: bytes of scratch memory.
    """

    dtype: str
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    starts: tuple[int, ...]
    absent: tuple[tuple[int, tuple[int, ...], np.dtype[Any]], ...]
    numbers: tuple[tuple[str, np.dtype[Any], bool, np.dtype[Any]], ...]
    clear: bool
    scratch: int


class RowRoutines(BlasPart[D]):
    """Base of the classes of levels 1 to 3."""

    def _routine(self, name: str, given: Given) -> Request[Any]:
        """Return the request for a routine; ``given`` may hold more than its arguments."""
        row, called, options_of, operands, reads, writes, rescaled = _ROUTES[name]
        # Loops, because these few lines are most of what a call costs the program.
        read_options = []
        for option, usual, read in options_of:
            value = given[option]
            read_options.append(0 if value is usual else read(value, option))
        if strided(*[given[argument] for argument, *_ in operands]):
            given = _as_transposes(row, given, read_options)
        options = tuple(read_options)

        def prepare(preparer: Preparer) -> Submission[Any]:
            memory = preparer.memory
            refs: list[Any] = []
            blocks: list[Any] = []
            for argument, check, made, gaps in operands:
                ref = given[argument]
                refs.append(ref)
                is_made = ref is None and made
                blocks.append(None if is_made else check(ref, memory, argument, strided=gaps))
            plan = _check(row, given, dict(zip(row.options, options, strict=True)))
            name_of_dtype, sizes, steps, starts, absent, scalars, clear, scratch_bytes = plan
            numbers: list[Scalar | None] = []
            on_device = False
            for number, dtype, is_real, _ in scalars:
                value = given[number]
                if type(value) is float and is_real:
                    numbers.append(value)
                elif type(value) is GpuRef:
                    numbers.append(None)
                    on_device = True
                else:
                    numbers.append(scalar(value, dtype, number))
            for at, shape, kind in absent:
                if at == rescaled:
                    scales_nothing(numbers[-1], None)
                refs[at] = ref = preparer.output(shape, kind)
                blocks[at] = ref.block
            places: list[int] = []
            bases: list[object] = []
            for block, start in zip(blocks, starts, strict=True):
                places.append(block.address + start)
                bases.append(origin(block)[0])
            read: list[Block] = [blocks[at] for at in reads]
            if rescaled is not None and not scales_nothing(numbers[-1], refs[rescaled]):
                read.append(blocks[rescaled])
            written: list[Block] = []
            for at in writes:
                written.append(blocks[at])
                if bases.count(bases[at]) > 1:
                    _require_apart(row, given, options)
            places_of_scalars: tuple[int, ...] = ()
            if on_device:
                kinds = [(number, given[number], kind) for number, _, _, kind in scalars]
                places_of_scalars, of_scalars, room = place_scalars(preparer, kinds)
                outputs = [(row.operands[at].name, refs[at]) for at in writes]
                inputs = [(number, ref) for number, ref, _ in kinds if type(ref) is GpuRef]
                require_no_alias(name, outputs, inputs)
                if rescaled is not None and refs[rescaled].size:
                    require_terms(*refs)
                read += of_scalars
                written += room
            scratch = 0
            if scratch_bytes:
                block = preparer.output((scratch_bytes,), UINT8).block
                written.append(block)
                scratch = block.address
            message = RunRoutine(
                name,
                name_of_dtype,
                sizes,
                tuple(places),
                steps,
                tuple(numbers),
                options,
                clear,
                scratch,
                places_of_scalars,
            )
            result = refs[writes[0]] if len(writes) == 1 else tuple([refs[at] for at in writes])
            return Submission(message, read, written, result)

        return Request(LANE, called, prepare)


def _as_transposes(row: Row, given: Given, options: list[int]) -> Given:
    """Return the arguments with transposes in the place of matrices whose columns have no gaps.

    Change the options accordingly. Leave other views, which need no change or a copy.
    """
    turned = dict(given)
    for operand in row.operands:
        ref = given[operand.name]
        if operand.written or operand.form or len(operand.shape) < 2 or type(ref) is not GpuRef:
            continue
        if ref.ndim != 2 or not _by_columns(ref) or operand.structure == "hermitian":
            continue
        changed = list(options)
        if operand.trans:
            alone = sum(each.trans == operand.trans for each in row.operands) == 1
            at = row.options.index(operand.trans)
            changed[at] = 0 if options[at] else 1
            if not alone or (
                ref.dtype.kind == "c" and (options[at] == 2 or 1 not in row.transposes)
            ):
                continue
        elif not operand.structure:
            continue
        if operand.structure:  # its upper triangle is the lower one of its transpose
            at = row.options.index("lower")
            changed[at] = 1 - options[at]
        turned[operand.name], options[:] = ref.T, changed
    return turned


def _by_columns(ref: GpuRef) -> bool:
    """Return True if the columns of a matrix have no gaps, but its rows do."""
    laid = lay(ref.shape, _elements(ref), 0, conjugates=False)
    return laid is not None and laid.op == 1


def _elements(ref: GpuRef) -> tuple[int, ...]:
    """Return the strides of a ref in elements."""
    itemsize = ref.dtype.itemsize
    return tuple([stride // itemsize for stride in ref.strides])


_OPTIONS: Final[dict[str, Callable[[Any, str], int]]] = {
    "lower": lambda value, name: int(flag(value, name)),
    "side": lambda value, _: int(on_the_right(value)),
    "unit_diagonal": lambda value, name: int(flag(value, name)),
    **dict.fromkeys(("trans", "trans_a", "trans_b"), operation),
}
"""The function that reads each option."""

_USUAL: Final = {"lower": False, "unit_diagonal": False}
"""Defaults of options other than 0."""


class _Route(NamedTuple):
    """The parts of a row that every call reads first.

    Attributes:
        called: the name of its requests.
        options: names of options, their defaults, and the functions that read them.
        operands: names of operands, the functions that check them, True if an absent one is made,
            and True if it may have gaps.
        reads, writes: positions of the operands that the routine reads, and writes.
        rescaled: position of the written operand that is also read unless beta is 0.
    """

    row: Row
    called: str
    options: tuple[tuple[str, object, Callable[[Any, str], int]], ...]
    operands: tuple[tuple[str, Callable[..., Block], bool, bool], ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    rescaled: int | None


_ROUTES: Final = {
    row.name: _Route(
        row,
        f"blas.{row.name}",
        tuple((option, _USUAL.get(option, 0), _OPTIONS[option]) for option in row.options),
        tuple(
            (
                operand.name,
                require_writable if operand.written else require_readable,
                bool(operand.made),
                operand.gaps,
            )
            for operand in row.operands
        ),
        tuple(at for at, operand in enumerate(row.operands) if operand.access in ("r", "rw")),
        row.written,
        next((at for at, each in enumerate(row.operands) if each.access == "beta"), None),
    )
    for row in ROWS.values()
}


def _require_apart(row: Row, given: Given, options: tuple[int, ...]) -> None:
    """Require that written operands share no memory with others, except in place."""
    chosen = dict(zip(row.options, options, strict=True))
    refs = [given[operand.name] for operand in row.operands]
    written = [at for at in row.written if refs[at] is not None]
    reads, in_place = [], []
    for operand, ref in zip(row.operands, refs, strict=True):
        if ref is None or operand.written:
            continue
        name = operand.name
        if name in row.in_place and chosen.get(operand.trans):
            name = f"{name} (transposed)"
        elif name in row.in_place:
            in_place += [(row.operands[to].name, name) for to in written]
        reads.append((name, ref))
    outputs = [(row.operands[at].name, refs[at]) for at in reversed(written)]
    require_no_alias(row.name, outputs, reads, in_place=in_place)


def _check(row: Row, given: Given, options: Mapping[str, int]) -> _RoutinePlan:
    """Hold the arguments of a call against its row, and one another."""
    operands = [(operand, given[operand.name]) for operand in row.operands]
    like, lead = next((each.name, ref) for each, ref in operands if ref is not None)
    dtype = require_kind(lead, row.dtypes, row.name)
    _require_options(row, options, lead.dtype)
    sizes = _RoutineSizes(row, given, options)
    for operand, ref in operands:
        if ref is None:
            continue
        if not operand.shape and operand.made:
            _require_result(operand, ref, DTYPES[operand.dtype_of(dtype)])
            continue
        if ref is not lead:
            require_dtype(ref, lead.dtype, operand.name, like)
        if operand.steps:
            sizes.vector(operand, ref)
        elif not operand.sizes:
            require_numbers(ref, (5,) if operand.shape else (), operand.name)
        elif operand.form == "packed":
            sizes.packed(operand, ref)
        else:
            sizes.matrix(operand, ref)
    if row.filled and not sizes.found["n"]:
        raise ValueError(f"{row.name} of an empty vector: it has no elements to choose from")
    real = DTYPES[REAL_OF.get(dtype, dtype)]
    shapes = row.shapes(sizes.found, options)
    conjugates = lead.dtype.kind == "c" and options.get("trans") == 2
    forward = row.forward == "always" or (row.forward == "conjugates" and conjugates)
    steps, starts = [], []
    for (operand, ref), shape in zip(operands, shapes, strict=True):
        start = 0
        if operand.steps:
            step = 1 if ref is None else _increment(ref, operand.name)
            if step < 0 and ref is not None:
                start = (ref.shape[0] - 1) * ref.strides[0]
                if row.forward == "unordered":
                    step = -step
                elif forward:
                    raise not_contiguous(ref, operand.name)
        elif operand.gaps and ref is not None:
            step = _row_length(ref, operand.name)
        else:
            step = max(1, shape[1]) if len(shape) > 1 else 1
        steps.append(step)
        starts.append(start)
    return _RoutinePlan(
        dtype,
        tuple(sizes.found[size] for size in row.sizes),
        tuple(steps),
        tuple(starts),
        tuple(
            (at, shapes[at], DTYPES[operand.dtype_of(dtype)])
            for at, (operand, ref) in enumerate(operands)
            if ref is None
        ),
        tuple(
            (
                name,
                *((real, True) if is_real else (lead.dtype, lead.dtype.kind != "c")),
                DTYPES[row.scalar_dtype(name, dtype)],
            )
            for name, is_real in row.numbers
        ),
        any(operand.made == "zeros" and ref is None for operand, ref in operands),
        lead.nbytes if row.operands[0].form == "band" else 0,
    )


def _increment(ref: GpuRef, name: str) -> int:
    """Return the number of elements from one value of a vector to the next.

    Raises:
        NotContiguous: the vendor has no increment for it.
    """
    if ref.contiguous:
        return 1
    (stride,) = ref.strides
    if not stride or stride % ref.dtype.itemsize:
        raise not_contiguous(ref, name)
    return stride // ref.dtype.itemsize


def _row_length(ref: GpuRef, name: str) -> int:
    """Return the number of elements from one row of a matrix to the next.

    Raises:
        NotContiguous: the rows have gaps between their elements, or overlap.
    """
    laid = lay(ref.shape, _elements(ref), 0, conjugates=False)
    if laid is None or laid.op or any(stride % ref.dtype.itemsize for stride in ref.strides):
        raise not_contiguous(ref, name)
    return laid.row


def _require_options(row: Row, options: Mapping[str, int], dtype: np.dtype[Any]) -> None:
    """Require that options go with the dtype."""
    for name in ("trans", "trans_a", "trans_b"):
        op = options.get(name, 0)
        if dtype.kind == "c" and op not in row.transposes:
            wanted = "1 ('T')" if 1 in row.transposes else "2 ('C')"
            raise ValueError(f"{row.name} of a complex type takes {name} 0 or {wanted}, not {op}")


def _require_result(operand: RowOperand, ref: GpuRef, dtype: np.dtype[Any]) -> None:
    """A buffer for a number that comes out."""
    name = operand.name
    if ref.dtype is not dtype:
        raise TypeError(f"{name} must have dtype {dtype.name}, not {ref.dtype.name}")
    require_shape(ref, (), name)


class _RoutineSizes:
    """The sizes of a call: the first operand that has one says it, the others are held to it.

    Attributes:
        found: by name.
    """

    def __init__(self, row: Row, given: Given, options: Mapping[str, int]) -> None:
        self.found: dict[str, int] = {}
        self._row = row
        self._given = given
        self._options = options
        self._on_side = "n" if options.get("side") else "m"
        self._says: dict[str, tuple[str, str]] = {}
        if row.counts:
            self._take_band()

    def _take_band(self) -> None:
        counts = {name: whole(self._given[name], name) for name in self._row.counts}
        if min(counts.values()) < 0:
            shown = ", ".join(f"{name}={value}" for name, value in counts.items())
            raise ValueError(f"no size may be negative: {shown}")
        m, n = counts["m"], counts["n"]
        if self._options["trans"]:
            m, n = n, m
        self.found = {**counts, "m": m, "n": n}
        shown = f"a is {counts['m']} by {counts['n']}, trans={self._given['trans']!r}"
        for size, side in (("m", "rows"), ("n", "columns")):
            self._says[size] = ("a", f"the number of {side} of op(a) ({shown}) is")

    def vector(self, operand: RowOperand, ref: GpuRef) -> None:
        """Check the length of a vector, or take it as the size that it determines."""
        (size,) = self._names(operand)
        require_rank(ref, 1, operand.name)
        (there,) = ref.shape
        n = self.found.setdefault(size, there)
        by, why = self._says.setdefault(size, (operand.name, ""))
        if n != there:
            if not why:
                why = f"{by} (shape {self._given[by].shape}) has"
            raise ValueError(
                f"{operand.name} must have {n} elements, because {why} {n}, not "
                f"{there}, in shape {ref.shape}"
            )

    def matrix(self, operand: RowOperand, ref: GpuRef) -> None:
        """Read the shape of a matrix, and check it against the sizes found so far."""
        name = operand.name
        require_rank(ref, 2, name)
        names = self._names(operand)
        rows, columns = ref.shape
        if operand.form and operand.structure:
            if not rows:
                raise ValueError(
                    f"{name} must have at least one row for its diagonal, not shape {ref.shape}"
                )
            self.found |= {"k": rows - 1, "n": columns}
            self._says["n"] = (name, f"the number of columns of {name} (shape {ref.shape}) is")
            return
        if names[0] == names[1] and rows != columns and not operand.written:
            raise ValueError(f"{name} must be square, not of shape {ref.shape}")
        turned = bool(self._options.get(operand.trans))
        if operand.form == "band":
            kl, ku, n = (self.found[size] for size in ("kl", "ku", "m" if turned else "n"))
            why = f"there are {kl}+{ku}+1 diagonals of {n}"
            require_matrix(ref, (kl + ku + 1, n), name, why)
            return
        if turned:
            names = names[::-1]
        known = [self.found.get(size, size) for size in names]
        if any(
            type(size) is int and size != there
            for size, there in zip(known, ref.shape, strict=True)
        ):
            expected = f"({known[0]}, {known[1]})"
            if operand.written:
                raise ValueError(f"{name} must have shape {expected}, not {ref.shape}")
            by = self._says[next(size for size in names if size in self._says)][0]
            raise ValueError(
                f"{name} must have shape {expected} for {by} of shape "
                f"{self._given[by].shape}{self._chosen()}, not {ref.shape}"
            )
        for size, there, side in zip(names, ref.shape, ("rows", "columns"), strict=True):
            self.found[size] = there
            if size not in self._says:
                of = f"{name} (shape {ref.shape})"
                if operand.trans and operand.structure != "triangular":
                    side = {"rows": "columns", "columns": "rows"}[side] if turned else side  # noqa: PLW2901
                    trans = self._given[operand.trans]
                    of = f"op({name}) ({name} has shape {ref.shape}, {operand.trans}={trans!r})"
                self._says[size] = (name, f"the number of {side} of {of} is")

    def packed(self, operand: RowOperand, ref: GpuRef) -> None:
        """Check a packed triangle, and derive its number of columns if that is not known."""
        name = operand.name
        require_rank(ref, 1, name)
        there = ref.shape[0]
        n = self.found.setdefault("n", (math.isqrt(8 * there + 1) - 1) // 2)
        if packed(n) != there:
            if "n" in self._says:
                why = f"{packed(n)} elements, the triangle of {self._says['n'][0]} with {n}"
            else:
                why = f"{packed(n)} or {packed(n + 1)} elements, as triangles have"
            raise ValueError(f"{name} must have {why}, not {there}")
        self._says.setdefault("n", (name, f"the number of columns of {name} is"))

    def _names(self, operand: RowOperand) -> tuple[str, ...]:
        return tuple(self._on_side if size == "s" else size for size in operand.shape)

    def _chosen(self) -> str:
        """The options that shapes depend on."""
        shaping = [name for name in self._options if name == "side" or name.startswith("trans")]
        return "".join(f", {name}={self._given[name]!r}" for name in shaping)
