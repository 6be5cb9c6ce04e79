"""cuDSS in SciPy, behind the same symbols: what runs ``CudaDirect`` without a GPU.

It reads only the arguments of the prototypes: objects by handle, options and answers by pointer, in
the library's own types.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.numbers import CUDA_TYPES
from atomr_accel.libraries.sparse.host import _prototypes_dss as prototypes

from .lapack import memory
from .vendor import FakeCuda, FakeVendorOfThings

Array = np.ndarray[Any, Any]

ENUMS: Final = prototypes.ENUMS
DTYPE_OF: Final = {value: DTYPES[name] for name, value in CUDA_TYPES.items()}
INDEX: Final = {value: np.dtype(name) for name, value in prototypes.INDEX_TYPES.items()}
OPTION: Final = {ENUMS[f"CUDSS_CONFIG_{name}"]: name for name in prototypes.OPTIONS}
PHASES: Final = {
    ENUMS[f"CUDSS_PHASE_{name}"]: name
    for name in ("ANALYSIS", "FACTORIZATION", "REFACTORIZATION", "SOLVE")
}


class FakeDss(FakeVendorOfThings):
    """Stands in for the ``VendorLibrary`` of ``CudaDirect``."""

    library = "cudss"
    status_names = prototypes.STATUS_NAMES
    prototypes = prototypes.PROTOTYPES

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[str] = []
        self.refused: set[str] = set()

    def Create(self, cell: Any) -> int:  # noqa: N802 - the vendor's names
        return self.make(cell)

    def ConfigCreate(self, cell: Any) -> int:  # noqa: N802
        return self.make(cell, options={"SOLVE_MODE": 0, "IR_N_STEPS": 0, "PIVOT_EPSILON": -1.0})

    def DataCreate(self, _handle: int, cell: Any) -> int:  # noqa: N802
        return self.make(cell, analysed=False, solver=None, info=0, pivots=0)

    Destroy = ConfigDestroy = MatrixDestroy = FakeVendorOfThings.destroy

    def DataDestroy(self, _handle: int, thing: int) -> int:  # noqa: N802
        return self.destroy(thing)

    def SetStream(self, _handle: int, _stream: int) -> int:  # noqa: N802
        return 0

    def ConfigSet(self, config: int, name: int, value: int, size: int) -> int:  # noqa: N802
        option = OPTION[name]
        kind: Any = {"int": ctypes.c_int, "double": ctypes.c_double}[prototypes.OPTIONS[option]]
        assert size == ctypes.sizeof(kind)
        self.things[config].options[option] = kind.from_address(value).value
        return 0

    def DataGet(  # noqa: N802
        self, _handle: int, data: int, name: int, value: int | None, size: int, written: Any
    ) -> int:
        if name == ENUMS["CUDSS_DATA_DIAG"]:
            diagonal = self.things[data].diagonal
            assert size == diagonal.nbytes
            memory(value or 0, size)[:] = diagonal.view(np.uint8)
            return 0
        wide = name == ENUMS["CUDSS_DATA_NPIVOTS"] and self.things[data].wide
        written[0] = 8 if wide else 4
        if value is None:
            return 0
        assert size == written[0]
        kind: Any = ctypes.c_int64 if wide else ctypes.c_int
        found = self.things[data]
        told = found.info if name == ENUMS["CUDSS_DATA_INFO"] else found.pivots
        kind.from_address(value).value = told
        return 0

    def MatrixCreateCsr(self, cell: Any, *args: int | None) -> int:  # noqa: N802
        rows, columns, nnz, major, ends, indices, data, offset, index, kind, *ways = args
        assert rows == columns
        assert ends is None
        assert offset == index
        mtype, view, base = ways
        assert base == ENUMS["CUDSS_BASE_ZERO"]
        return self.make(
            cell, n=rows, nnz=nnz, parts=(major, indices, data), index=INDEX[index or 0],
            dtype=DTYPE_OF[kind or 0], mtype=mtype, view=view,
        )  # fmt: skip

    def MatrixCreateDn(self, cell: Any, *args: int | None) -> int:  # noqa: N802
        rows, columns, ld, pointer, kind, layout = args
        assert layout == ENUMS["CUDSS_LAYOUT_COL_MAJOR"]
        assert ld is not None
        assert rows is not None
        assert ld >= rows
        return self.make(cell, shape=(columns, rows), pointer=pointer, dtype=DTYPE_OF[kind or 0])

    def MatrixSetCsrPointers(  # noqa: N802
        self, matrix: int, major: int, ends: int | None, indices: int, data: int
    ) -> int:
        assert ends is None
        self.things[matrix].parts = (major, indices, data)
        return 0

    def Execute(  # noqa: N802
        self, _handle: int, phase: int, config: int, data: int, matrix: int, x: int, b: int
    ) -> int:
        name = PHASES[phase]
        self.phases.append(name)
        if name in self.refused:
            return prototypes.NOT_SUPPORTED
        a, kept, options = self.things[matrix], self.things[data], self.things[config].options
        if name == "ANALYSIS":
            kept.analysed, kept.wide = True, a.index.itemsize == 8
        elif name == "SOLVE":
            assert kept.solver is not None
            self.solve(a, kept, options, self.things[x], self.things[b])
        else:
            assert kept.analysed
            assert name == "FACTORIZATION" or kept.factorized
            self.factorize(a, kept, options)
        return 0

    def factorize(self, a: Any, kept: Any, options: dict[str, Any]) -> None:
        kept.factorized, kept.info, kept.pivots = True, 0, 0
        full = whole(a)
        # Of rows by themselves the library does not count the pivots.
        stored = full != 0
        np.fill_diagonal(stored, val=True)
        alone = (stored.sum(0) == 1) & (stored.sum(1) == 1)
        kept.diagonal = np.diag(full).copy()
        try:
            kept.solver = scipy.sparse.linalg.splu(scipy.sparse.csc_array(full))
        except RuntimeError:
            kept.pivots = int(not alone.any())
            return
        if a.mtype in (ENUMS["CUDSS_MTYPE_SPD"], ENUMS["CUDSS_MTYPE_HPD"]):
            least = np.linalg.eigvalsh(full).min()
            kept.info = int(least <= 0)
        pivots = np.abs(kept.solver.U.diagonal())
        least = max(options["PIVOT_EPSILON"], 0)
        kept.pivots = 0 if alone.any() else int((pivots < least).sum())
        kept.diagonal = np.maximum(pivots, least).astype(full.dtype)

    def solve(self, a: Any, kept: Any, options: dict[str, Any], x: Any, b: Any) -> None:
        right, target = (
            memory(each.pointer, each.shape[0] * each.shape[1] * each.dtype.itemsize)
            .view(each.dtype)
            .reshape(each.shape)
            for each in (b, x)
        )
        way = "NTH"[options["SOLVE_MODE"]]
        made = kept.solver.solve(right.T, way)
        full = whole(a)
        op = {"N": full, "T": full.T, "H": full.conj().T}[way]
        for _ in range(options["IR_N_STEPS"]):
            made = made + kept.solver.solve(right.T - op @ made, way)
        target[...] = made.T


def whole(a: Any) -> Array:
    """A matrix as a dense one, of which a triangle may be stored."""
    major, indices = (
        memory(pointer, count * a.index.itemsize).view(a.index)
        for pointer, count in zip(a.parts, (a.n + 1, a.nnz), strict=False)
    )
    data = memory(a.parts[2], a.nnz * a.dtype.itemsize).view(a.dtype)
    made: Array = scipy.sparse.csr_array((data, indices, major), shape=(a.n, a.n)).toarray()
    if a.view == ENUMS["CUDSS_MVIEW_FULL"]:
        return made
    part = np.tril(made) if a.view == ENUMS["CUDSS_MVIEW_LOWER"] else np.triu(made)
    assert (part == made).all()
    other = part.T if a.mtype == ENUMS["CUDSS_MTYPE_SYMMETRIC"] else part.conj().T
    full: Array = part + other - np.diag(np.diag(part))
    return full


class FakeCudaDirect(FakeCuda):
    """``CudaDirect`` on host memory."""

    executor = "atomr_accel.libraries.sparse.host._direct_cuda:CudaDirect"
