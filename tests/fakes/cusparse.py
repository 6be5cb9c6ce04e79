"""cuSPARSE in NumPy, behind the same symbols: what runs ``CudaSparse`` without a GPU.

It has descriptors of operands, tells how much scratch memory calls need, and fills that memory with
garbage. It refuses the same calls as cuSPARSE, and chooses the worst of undefined behaviour: with
``beta`` 0 it multiplies the old values.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import scipy.linalg

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.numbers import CUDA_TYPES
from atomr_accel.libraries.sparse.host._prototypes import ENUMS, PROTOTYPES

from .lapack import memory
from .vendor import FakeCuda, FakeVendor

Array = np.ndarray[Any, Any]

SUCCESS, INVALID_VALUE, NOT_SUPPORTED = 0, 3, 10
INDEX: Final = {ENUMS["CUSPARSE_INDEX_32I"]: np.int32, ENUMS["CUSPARSE_INDEX_64I"]: np.int64}
DTYPE_OF: Final = {value: DTYPES[name] for name, value in CUDA_TYPES.items()}
SCRATCH: Final = 192
"""Bytes that everything needs that may need any."""


class Refusal(Exception):
    """A status that is not success."""


def vector(pointer: int, count: int, dtype: Any) -> Array:
    """Elements on the device."""
    if not count:
        return np.zeros(0, dtype)
    assert pointer, "a null pointer"
    return memory(pointer, count * np.dtype(dtype).itemsize).view(dtype)


def number(argument: Any, dtype: np.dtype[Any]) -> Any:
    """Return the number that a pointer to a host scalar refers to."""
    buffer = bytes(argument._obj)
    assert len(buffer) == dtype.itemsize, (len(buffer), dtype)
    return np.frombuffer(buffer, dtype)[0]


def wide(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.itemsize == 2 else array


def op(array: Array, trans: int) -> Array:
    if trans == 2 and array.dtype.kind != "c":
        raise Refusal(INVALID_VALUE)
    return array if trans == 0 else array.T if trans == 1 else array.conj().T


def use(scratch: int) -> None:
    """Scratch memory is there, and written."""
    assert scratch, "no scratch memory"
    memory(scratch, SCRATCH)[:] = 0x7F


class Sparse(SimpleNamespace):
    """A descriptor of a sparse matrix, or of a sparse vector as one of one row."""

    def array(self) -> Array:
        """Return the matrix as a dense array; repeated elements are summed."""
        form, (rows, columns) = self.form, self.shape
        made = np.zeros((rows, columns), wide(np.zeros(0, self.dtype)).dtype)
        if form in ("blocked-ell", "sliced-ell"):
            return self.filled(made)
        majors, minors = self.places()
        data = wide(self.data())
        if form == "bsr":
            r, c = self.block
            for i, j, block in zip(majors, minors, data.reshape(-1, r, c), strict=True):
                made[i * r : (i + 1) * r, j * c : (j + 1) * c] += block
            return made
        np.add.at(made, (minors, majors) if form == "csc" else (majors, minors), data)
        return made

    def filled(self, made: Array) -> Array:
        """The elements of a matrix whose rows are padded, one after the other."""
        rows, size = self.shape[0], self.block[0]
        if self.form == "blocked-ell":
            indices = vector(self.parts[0], rows // size * (self.width // size), self.index)
            data = wide(vector(self.parts[1], rows * self.width, self.dtype))
            for (i, place), j in np.ndenumerate(indices.reshape(rows // size, -1)):
                if j != -1:
                    down, across = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
                    part = slice(place * size, (place + 1) * size)
                    made[down, across] += data.reshape(rows, self.width)[down, part]
            return made
        offsets = vector(self.parts[0], -(-rows // size) + 1, self.index)
        indices = vector(self.parts[1], self.width, self.index)
        data = wide(vector(self.parts[2], self.width, self.dtype))
        for row in range(rows):
            begin, end = offsets[row // size : row // size + 2]
            for at in range(begin + row % size, end, size):
                if indices[at] != -1:
                    made[row, indices[at]] += data[at]
        return made

    def places(self) -> tuple[Array, Array]:
        """Return the rows and the columns of the elements, also for column formats."""
        indices = vector(self.parts[1], self.nnz, self.index)
        count = self.shape[self.form == "csc"] // (self.block[0] if self.form == "bsr" else 1)
        pointers = vector(self.parts[0], count + 1, self.index)
        return np.repeat(np.arange(count), np.diff(pointers)), indices

    def data(self) -> Array:
        return vector(self.parts[2], self.nnz * self.block[0] * self.block[1], self.dtype)


class FakeSparseLibrary(FakeVendor):
    """The functions in use, by name; ``called`` has those that were called."""

    library = "cusparse"

    def __init__(self) -> None:
        self.called: list[str] = []
        self.behind: list[Array] = []  # what lay behind the rows of pentadiagonal systems
        self.things: dict[int, Any] = {}
        self.pointer_mode = ENUMS["CUSPARSE_POINTER_MODE_HOST"]
        self.functions = {name: self._function(name) for name in PROTOTYPES}

    def _function(self, name: str) -> Callable[..., int]:
        run, words = self._found(name), PROTOTYPES[name].split()

        def call(*args: Any) -> int:
            assert len(args) == len(words), (name, args)
            self.called.append(name)
            try:
                run(*args)
            except Refusal as refusal:
                return int(refusal.args[0])
            return SUCCESS

        return call

    def _found(self, name: str) -> Callable[..., Any]:
        """Return the stand-in for a function."""
        short = name.removeprefix("cusparse")
        if short.endswith(("_bufferSize", "_bufferSizeExt")):
            return self._tell_size
        if short.startswith("Destroy") or short.endswith("_destroyDescr"):
            return self._destroy
        if short.endswith("_createDescr") or short == "Create":
            return lambda cell: self._new(cell, SimpleNamespace())
        for family in ("gtsv2StridedBatch", "gtsv2", "gpsvInterleavedBatch"):
            if short.endswith(family):
                dtype = dict(zip("SDCZ", ("f4", "f8", "c8", "c16"), strict=True))[short[0]]
                banded: Callable[..., None] = getattr(self, family)
                return lambda _handle, *args: banded(np.dtype(dtype), *args)
        found: Callable[..., Any] = getattr(self, short)
        return found

    def _tell_size(self, *args: Any) -> None:
        args[-1]._obj.value = SCRATCH

    def _new(self, cell: Any, thing: Any) -> None:
        self.things[len(self.things) + 1] = thing
        cell._obj.value = len(self.things)

    def _destroy(self, thing: int) -> None:
        assert self.things.pop(thing, None) is not None, "destroyed twice"
        self.things[thing + (1 << 32)] = None  # numbers are never used again

    # --- handles and descriptors --------------------------------------------------------------

    def SetStream(self, _handle: int, _stream: int) -> None:  # noqa: N802
        pass

    def SetPointerMode(self, _handle: int, mode: int) -> None:  # noqa: N802
        self.pointer_mode = mode

    def GetVersion(self, _handle: int, cell: Any) -> None:  # noqa: N802
        cell._obj.value = 12510

    def _compressed(self, form: str, cell: Any, *args: Any) -> None:
        rows, columns, nnz, *parts, index, other, base, dtype = args
        assert index == other
        assert base == 0
        if form != "bsr" and nnz > rows * columns:
            raise Refusal(INVALID_VALUE)
        made = Sparse(form=form, shape=(rows, columns), nnz=nnz, parts=parts, block=(1, 1))
        made.index, made.dtype, made.marks = INDEX[index], DTYPE_OF[dtype], {}
        self._new(cell, made)

    def CreateCsr(self, cell: Any, *args: Any) -> None:  # noqa: N802
        self._compressed("csr", cell, *args)

    def CreateCsc(self, cell: Any, *args: Any) -> None:  # noqa: N802
        self._compressed("csc", cell, *args)

    def CreateBsr(self, cell: Any, *args: Any) -> None:  # noqa: N802
        rows, columns, nnz, r, c, *rest, order = args
        assert order == ENUMS["CUSPARSE_ORDER_ROW"]
        if r != c:
            raise Refusal(INVALID_VALUE)
        self._compressed("bsr", cell, rows * r, columns * c, nnz, *rest)
        self.things[cell._obj.value].block = (r, c)

    def CreateBlockedEll(self, cell: Any, rows: int, columns: int, *args: Any) -> None:  # noqa: N802
        size, width, *parts, index, base, dtype = args
        if rows % size or columns % size or width % size or not width:
            raise Refusal(INVALID_VALUE)
        self._compressed(
            "blocked-ell", cell, rows, columns, rows * width, *parts, index, index, base, dtype
        )
        made = self.things[cell._obj.value]
        made.block, made.width = (size, size), width

    def CreateSlicedEll(self, cell: Any, rows: int, columns: int, *args: Any) -> None:  # noqa: N802
        nnz, padded, size, *rest = args
        if padded < nnz or not size:
            raise Refusal(INVALID_VALUE)
        self._compressed("sliced-ell", cell, rows, columns, nnz, *rest)
        made = self.things[cell._obj.value]
        made.block, made.width = (size, 1), padded

    def CreateSpVec(self, cell: Any, n: int, nnz: int, *rest: Any) -> None:  # noqa: N802
        indices, data, index, base, dtype = rest
        assert base == 0
        made = SimpleNamespace(n=n, index=INDEX[index], dtype=DTYPE_OF[dtype])
        made.at, made.nnz, made.place = data, nnz, indices
        self._new(cell, made)

    def CreateDnVec(self, cell: Any, n: int, pointer: int, dtype: int) -> None:  # noqa: N802
        self._new(cell, SimpleNamespace(shape=(n,), at=pointer, dtype=DTYPE_OF[dtype]))

    def CreateDnMat(self, cell: Any, *args: Any) -> None:  # noqa: N802
        rows, columns, ld, pointer, dtype, order = args
        by_rows = order == ENUMS["CUSPARSE_ORDER_ROW"]
        if ld < max(1, columns if by_rows else rows):
            raise Refusal(INVALID_VALUE)
        made = SimpleNamespace(shape=(rows, columns), at=pointer, dtype=DTYPE_OF[dtype])
        made.ld, made.by_rows = ld, by_rows
        self._new(cell, made)

    def SpMatSetAttribute(self, a: int, mark: int, value: Any, size: int) -> None:  # noqa: N802
        assert size == 4
        self.things[a].marks[mark] = value._obj.value

    def SpMatGetSize(self, a: int, *cells: Any) -> None:  # noqa: N802
        for cell, value in zip(cells, (*self.things[a].shape, self.things[a].nnz), strict=True):
            cell._obj.value = value

    def CsrSetPointers(self, a: int, *parts: int) -> None:  # noqa: N802
        self.things[a].parts = parts

    def _dense(self, descriptor: int) -> Array:
        """A dense operand, as a view that can be written."""
        each = self.things[descriptor]
        if len(each.shape) == 1:
            return vector(each.at, each.shape[0], each.dtype)
        rows, columns = each.shape
        if not rows or not columns:
            return np.zeros((rows, columns), each.dtype)
        inner, outer = (columns, rows) if each.by_rows else (rows, columns)
        flat = memory(each.at, ((outer - 1) * each.ld + inner) * each.dtype.itemsize)
        strides = (each.ld * each.dtype.itemsize, each.dtype.itemsize)
        return np.ndarray(
            each.shape, each.dtype, flat, 0, strides if each.by_rows else strides[::-1]
        )

    # --- products -----------------------------------------------------------------------------

    def _product(self, value: Array, out: Array, alpha: Any, beta: Any, compute: int) -> None:
        kind = DTYPE_OF[compute]
        old = wide(out) * number(beta, kind)
        out[...] = (number(alpha, kind) * value + old).astype(out.dtype)

    def SpMV(self, _handle: int, trans: int, alpha: Any, a: int, x: int, *rest: Any) -> None:  # noqa: N802
        beta, y, compute, _, scratch = rest
        use(scratch)
        if self.things[a].form in ("bsr", "blocked-ell"):
            raise Refusal(NOT_SUPPORTED)
        taken = op(self.things[a].array(), trans)
        self._product(taken @ wide(self._dense(x)), self._dense(y), alpha, beta, compute)

    def SpMM(self, _handle: int, trans: int, op_b: int, alpha: Any, a: int, *rest: Any) -> None:  # noqa: N802
        b, beta, c, compute, _, scratch = rest
        use(scratch)
        if self.things[a].form == "sliced-ell":
            raise Refusal(NOT_SUPPORTED)
        if self.things[a].form in ("bsr", "blocked-ell") and trans:
            raise Refusal(NOT_SUPPORTED)
        value = op(self.things[a].array(), trans) @ op(wide(self._dense(b)), op_b)
        self._product(value, self._dense(c), alpha, beta, compute)

    def SDDMM(self, _handle: int, op_a: int, op_b: int, alpha: Any, *rest: Any) -> None:  # noqa: N802
        a, b, beta, c, compute, _, scratch = rest
        use(scratch)
        out = self.things[c]
        if out.form != "csr":
            raise Refusal(NOT_SUPPORTED)
        full = op(self._dense(a), op_a) @ op(self._dense(b), op_b)
        self._product(full[out.places()], out.data(), alpha, beta, compute)

    def SpGEMMreuse_workEstimation(self, *args: Any) -> None:  # noqa: N802
        self._staged(args, 1)

    def SpGEMMreuse_nnz(self, *args: Any) -> None:  # noqa: N802
        if not self._staged(args, 3):
            return
        a, b, c = (self.things[each] for each in args[3:6])
        if INDEX[ENUMS["CUSPARSE_INDEX_64I"]] in (a.index, b.index):
            raise Refusal(NOT_SUPPORTED)
        places = []
        for each in (a, b):
            made = np.zeros(each.shape)
            made[each.places()] = 1
            places.append(made)
        c.structure = np.nonzero(places[0] @ places[1])
        c.nnz = len(c.structure[0])

    def SpGEMMreuse_copy(self, *args: Any) -> None:  # noqa: N802
        if not self._staged(args, 1):
            return
        c = self.things[args[5]]
        rows, columns = c.structure
        pointers = np.searchsorted(rows, np.arange(c.shape[0] + 1))
        vector(c.parts[0], c.shape[0] + 1, c.index)[:] = pointers
        vector(c.parts[1], c.nnz, c.index)[:] = columns

    def SpGEMMreuse_compute(self, _handle: int, *args: Any) -> None:  # noqa: N802
        alpha, a, b, beta, c, compute = args[2:8]
        out = self.things[c]
        value = self.things[a].array() @ self.things[b].array()
        assert number(beta, DTYPE_OF[compute]) == 0
        out.data()[:] = number(alpha, DTYPE_OF[compute]) * value[out.structure]

    def _staged(self, args: tuple[Any, ...], count: int) -> bool:
        """Tell sizes the first time; whether to work."""
        pairs = args[-2 * count :]
        sizes, scratch = pairs[::2], pairs[1::2]
        if not any(scratch):
            for size in sizes:
                size._obj.value = SCRATCH
            return False
        for each in scratch:
            use(each)
        return True

    # --- systems ------------------------------------------------------------------------------

    def SpSV_analysis(self, *args: Any) -> None:  # noqa: N802
        *_, a, _x, _y, _compute, _alg, state, scratch = args
        use(scratch)
        self.things[state].analysed = a, scratch

    def SpSM_analysis(self, *args: Any) -> None:  # noqa: N802
        self.SpSV_analysis(*args)

    def SpSV_solve(self, _handle: int, trans: int, alpha: Any, *args: Any) -> None:  # noqa: N802
        a, x, y, compute, _, state = args
        assert self.things[state].analysed[0] == a, "another descriptor than was analysed"
        assert (memory(self.things[state].analysed[1], SCRATCH) == 0x7F).all()
        matrix = self.things[a]
        full = matrix.array()
        lower = matrix.marks[ENUMS["CUSPARSE_SPMAT_FILL_MODE"]] == 0
        triangle = np.tril(full) if lower else np.triu(full)
        if matrix.marks[ENUMS["CUSPARSE_SPMAT_DIAG_TYPE"]]:
            np.fill_diagonal(triangle, 1)
        right = number(alpha, DTYPE_OF[compute]) * self._dense(x)
        self._dense(y)[...] = scipy.linalg.solve_triangular(
            op(triangle, trans), right, lower=lower == (trans == 0)
        )

    def SpSM_solve(self, _handle: int, trans: int, _op: int, *args: Any) -> None:  # noqa: N802
        self.SpSV_solve(_handle, trans, *args)

    def gtsv2(self, dtype: Any, m: int, n: int, *args: int) -> None:
        *diagonals, b, ld, scratch = args
        use(scratch)
        if m < 3 or ld < m:
            raise Refusal(INVALID_VALUE)
        right = vector(b, ld * n, dtype).reshape(n, ld)[:, :m].T
        self._band([vector(each, m, dtype) for each in diagonals], right)

    def gtsv2StridedBatch(self, dtype: Any, m: int, *args: int) -> None:  # noqa: N802
        *pointers, count, stride, scratch = args
        use(scratch)
        if m < 3 or stride < m:
            raise Refusal(INVALID_VALUE)
        stacks = [vector(each, count * stride, dtype).reshape(count, stride) for each in pointers]
        for each in range(count):
            *diagonals, right = (stack[each, :m] for stack in stacks)
            self._band(diagonals, right)

    def gpsvInterleavedBatch(self, dtype: Any, _algo: int, m: int, *args: int) -> None:  # noqa: N802
        *pointers, count, scratch = args
        use(scratch)
        if m < 3:
            raise Refusal(INVALID_VALUE)
        stacks = [vector(each, count * m, dtype).reshape(m, count) for each in pointers]
        rows = [vector(each, count * (m + 2), dtype).reshape(-1, count) for each in pointers]
        self.behind = [each[m:].copy() for each in rows]
        for each in range(count):
            *diagonals, right = (stack[:, each] for stack in stacks)
            self._band(diagonals, right)

    def _band(self, diagonals: list[Array], right: Array) -> None:
        """Solve in place, and spoil the diagonals, which cuSPARSE may do."""
        reach, n = len(diagonals) // 2, len(diagonals[0])
        full = np.zeros((n, n), right.dtype)
        for diagonal, offset in zip(diagonals, range(-reach, reach + 1), strict=True):
            for row in range(n):
                inside = 0 <= row + offset < n
                assert inside or diagonal[row] == 0, "what is outside must be zero"
                if inside:
                    full[row, row + offset] = diagonal[row]
            diagonal[...] = np.nan
        right[...] = np.linalg.solve(full, right)

    # --- vectors ------------------------------------------------------------------------------

    def _sparse(self, x: int) -> tuple[Array, Array]:
        each = self.things[x]
        return vector(each.place, each.nnz, each.index), vector(each.at, each.nnz, each.dtype)

    def Axpby(self, _handle: int, alpha: Any, x: int, beta: Any, y: int) -> None:  # noqa: N802
        (indices, data), dense = self._sparse(x), self._dense(y)
        dense *= number(beta, dense.dtype)
        dense[indices] += number(alpha, dense.dtype) * data

    def Gather(self, _handle: int, y: int, x: int) -> None:  # noqa: N802
        indices, data = self._sparse(x)
        data[:] = self._dense(y)[indices]

    def Scatter(self, _handle: int, x: int, y: int) -> None:  # noqa: N802
        indices, data = self._sparse(x)
        self._dense(y)[indices] = data

    def SpVV(self, _handle: int, trans: int, x: int, y: int, *rest: Any) -> None:  # noqa: N802
        out, compute, scratch = rest
        use(scratch)
        assert self.pointer_mode == ENUMS["CUSPARSE_POINTER_MODE_DEVICE"]
        indices, data = self._sparse(x)
        taken = data.conj() if trans == 2 else data
        vector(out, 1, DTYPE_OF[compute])[0] = taken @ self._dense(y)[indices]


class FakeCudaSparse(FakeCuda):
    """``CudaSparse`` on host memory."""

    executor = "atomr_accel.libraries.sparse.host._cuda:CudaSparse"
