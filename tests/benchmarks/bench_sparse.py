"""Products with sparse matrices, of 2:4 sparsity and direct solvers against CuPy and PyTorch.

The matrices are shaped like those of the SuiteSparse collection: a power law, as graphs of the
web have; a stencil of five points; and a band. A product with a matrix of 2:4 sparsity is held
against the dense one. Measured side by side, see ``side_by_side.py``.
Without a GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import scipy.sparse
import trio
from side_by_side import Rival, Row, compare, cupy_of, open_first, show, torch_of

from atomr_accel import LibraryMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

COLUMNS = 32


def power_law(n: int, rng: np.random.Generator) -> Any:
    """A graph in which few rows and columns have most elements."""
    count = 12 * n
    row = np.minimum(rng.zipf(1.6, count) - 1, n - 1)
    column = rng.permutation(n)[np.minimum(rng.zipf(1.6, count) - 1, n - 1)]
    row = np.where(rng.random(count) < 0.5, row, rng.integers(0, n, count))
    column = np.where(rng.random(count) < 0.5, column, rng.integers(0, n, count))
    made = scipy.sparse.coo_array((rng.standard_normal(count), (row, column)), shape=(n, n))
    made.sum_duplicates()
    return made


def stencil(n: int, _rng: np.random.Generator) -> Any:
    """Five points of a grid."""
    side = int(n**0.5)
    ones = np.ones(side * side)
    offsets = [-side, -1, 0, 1, side]
    return scipy.sparse.diags_array(
        [-ones[side:], -ones[1:], 4 * ones, -ones[1:], -ones[side:]], offsets=offsets
    )


def banded(n: int, rng: np.random.Generator) -> Any:
    """Everything within 16 of the diagonal."""
    offsets = range(-16, 17)
    diagonals = [rng.standard_normal(n - abs(each)) for each in offsets]
    return scipy.sparse.diags_array(diagonals, offsets=[*offsets])


MATRICES: dict[str, Callable[[int, np.random.Generator], Any]] = {
    "power law": power_law,
    "stencil": stencil,
    "banded": banded,
}


def rivals_of(device: Device, matrix: Any, x: Any) -> dict[str, Rival]:
    """Return the rivals' equivalents of the product."""
    rivals: dict[str, Rival] = {}
    if cupy := cupy_of(device):
        import cupyx.scipy.sparse

        a, dense = cupyx.scipy.sparse.csr_matrix(matrix), cupy.asarray(x)
        rivals["cupy"] = Rival(partial(a.__matmul__, dense), cupy.cuda.Device().synchronize)
    if torch := torch_of(device):
        parts = [torch.from_numpy(each) for each in (matrix.indptr, matrix.indices, matrix.data)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a = torch.sparse_csr_tensor(*parts, size=matrix.shape).cuda()
        dense = torch.from_numpy(x).cuda()
        rivals["torch"] = Rival(partial(torch.matmul, a, dense), torch.cuda.synchronize)
    return rivals


async def measure(device: Device, n: int) -> None:
    """SpMV and SpMM of each matrix, in float32."""
    rng = np.random.default_rng(5)
    for name, make in MATRICES.items():
        matrix = scipy.sparse.csr_matrix(make(n, rng).astype(np.float32))
        matrix.sort_indices()
        a = await device.sparse.put(matrix)
        size = matrix.shape[0]
        for what, shape in (("SpMV", (size,)), ("SpMM", (size, COLUMNS))):
            host = rng.standard_normal(shape).astype(np.float32)
            x, out = await device.put(host), await device.empty(shape, np.float32)

            def call(on: Any, a: Any = a, x: Any = x, out: Any = out) -> Any:
                return on.sparse.matmul(a, x, out=out)

            rivals = rivals_of(device, matrix, host)
            paces = await compare(device, call, rivals)
            # Bytes that are read and written at least once.
            nbytes = sum(each.nbytes for each in (matrix.data, matrix.indices, matrix.indptr))
            goals = {"cupy": 1.0} if "cupy" in rivals else {}
            show(Row(f"{what} {name}", nbytes + 2 * host.nbytes, "GB/s", *paces, goals))


async def measure_structured(device: Device, n: int) -> None:
    """Products of square matrices, half of whose elements are zero, against dense ones."""
    rng = np.random.default_rng(6)
    for dtype in ("float16", "bfloat16"):
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        a = await device.put(rng.standard_normal((n, n)).astype(np.float32).astype(kind))
        b, out = await device.copy(a), await device.empty((n, n), kind)
        try:
            half = await device.sparselt.compress(await device.sparselt.prune(a))
            await device.sparselt.matmul(half, b, out=out, autotune=True)
        except LibraryMissing as missing:
            print(missing)
            return

        def call(on: Any, half: Any = half, b: Any = b, out: Any = out) -> Any:
            return on.sparselt.matmul(half, b, out=out, autotune=True)

        def dense(on: Any, a: Any = a, b: Any = b, out: Any = out) -> Any:
            return on.blaslt.matmul(a, b, out=out)

        ours, _ = await compare(device, call, {})
        theirs, _ = await compare(device, dense, {})
        show(Row(f"2:4 {dtype} {n}", 2 * n**3, "TFLOP/s", ours, {"dense": theirs}, {"dense": 1.3}))


async def measure_direct(device: Device, side: int) -> None:
    """Measure a Poisson problem by factors: in full, and with a structure that is known."""
    count = side * side
    matrix = scipy.sparse.csr_matrix(stencil(count, np.random.default_rng(7)))
    matrix.sort_indices()
    a, b = await device.sparse.put(matrix), await device.put(np.ones(count))
    try:
        lu = await device.sparse.splu(a)
    except LibraryMissing as missing:
        print(missing)
        return
    calls: dict[str, tuple[Callable[[Any], Any], bool]] = {
        "spsolve": (lambda on: on.sparse.spsolve(a, b), False),
        "refactorize": (lambda _on: lu.refactorize(a), False),
        "lu.solve": (lambda on: (lu if on is device else on.using(lu)).solve(b), True),
    }
    theirs = direct_rivals(device, matrix)
    for name, (call, together) in calls.items():
        rivals = {"cupy": theirs[name]} if name in theirs else {}
        paces = await compare(device, call, rivals, together=together)
        goals = dict.fromkeys(rivals, 1.0)
        show(Row(f"{name} {count}", matrix.data.nbytes, "GB/s", *paces, goals))


def direct_rivals(device: Device, matrix: Any) -> dict[str, Rival]:
    """Return CuPy's solvers: ``splu`` factorizes on the CPU, the others on the device."""
    cupy = cupy_of(device)
    if cupy is None:
        return {}
    import cupyx.scipy.sparse
    import cupyx.scipy.sparse.linalg

    a, b = cupyx.scipy.sparse.csr_matrix(matrix), cupy.ones(matrix.shape[0])
    lu = cupyx.scipy.sparse.linalg.splu(a)
    wait = cupy.cuda.Device().synchronize
    return {
        "spsolve": Rival(partial(cupyx.scipy.sparse.linalg.spsolve, a, b), wait),
        "lu.solve": Rival(partial(lu.solve, b), wait),
    }


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        large = device.backend == "cuda"
        await measure(device, 1 << 20 if large else 1 << 12)
        await measure_structured(device, 4096 if large else 64)
        await measure_direct(device, 64 if large else 16)


if __name__ == "__main__":
    trio.run(run)
