"""A sparse matrix times vectors and matrices, converted and checked on the device."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse
import trio

from atomr_accel import CpuFallbackWarning, open_device


async def main() -> None:
    """Multiply a random matrix in every format, and compare with SciPy."""
    rng = np.random.default_rng(3)
    sample = scipy.sparse.random_array((2000, 3000), density=0.01, rng=rng)
    matrix = scipy.sparse.csr_array(sample)
    x = rng.standard_normal((3000, 8))
    async with open_device(0) as device:
        a = await device.sparse.put(matrix, check=True, sealed=True)
        vector, block = await device.put(x[:, 0]), await device.put(x)
        forms = {
            "csr": a,
            "csc": await device.sparse.tocsc(a),
            "coo": await device.sparse.tocoo(a),
            "bsr": await device.sparse.tobsr(a, (4, 4)),
        }
        for name, each in forms.items():
            one = await device.get(await device.sparse.matmul(each, vector))
            many = await device.get(await device.sparse.matmul(each, block))
            error = max(abs(one - matrix @ x[:, 0]).max(), abs(many - matrix @ x).max())
            print(f"{name}: {each.nnz} stored elements, largest error {error:.1e}")
            assert error < 1e-10
        gram = await device.sparse.spgemm(await device.sparse.tocsr(a.T), a)
        print(f"a.T @ a: {gram!r}")
        assert gram.nnz == (matrix.T @ matrix).nnz


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
