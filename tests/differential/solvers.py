"""Cases of iterative solvers, against direct ones."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import scipy.sparse

from atomr_accel import Device
from atomr_accel.solvers import bicgstab, cg, gmres, minres

from .cases import Case, chance, choose

SOLVERS: Final[dict[str, Any]] = {"cg": cg, "bicgstab": bicgstab, "minres": minres, "gmres": gmres}
TOLERANCE: Final = {"float32": 1e-4, "float64": 1e-8, "complex64": 1e-4, "complex128": 1e-8}


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    with case.described():
        name, dtype = choose(random, list(SOLVERS)), choose(random, list(TOLERANCE))
        n = choose(random, (2, 5, 17, 40, 64))
        kind = np.dtype(dtype).kind
        a = random.uniform(-1, 1, (n, n)) + (
            1j * random.uniform(-1, 1, (n, n)) if kind == "c" else 0
        )
        a *= random.random((n, n)) < 0.3
        if name in ("cg", "minres"):
            a = a + a.conj().T
        a = a + np.eye(n) * (1.5 * np.abs(a).sum(1).max() + 1)  # well conditioned
        a = a.astype(dtype)
        b = random.uniform(-1, 1, n).astype(dtype)
        dense, begun = chance(random, 0.5), chance(random, 0.3)
        case.tell(solver=name, dtype=dtype, n=n, dense=dense, begun=begun)
        given: Any = (
            await device.put(a) if dense else await device.sparse.put(scipy.sparse.csr_array(a))
        )
        right = await case.put(b, views=False)
        x0 = await case.put(random.uniform(-1, 1, n).astype(dtype), views=False) if begun else None
        tolerance = TOLERANCE[dtype]
        x, info = await SOLVERS[name](device, given, right, x0, rtol=tolerance / 4, maxiter=400)
        found = await case.fetch(x)
        assert found.dtype.name == dtype
        left = np.linalg.norm(a.astype(np.complex128) @ found - b) / np.linalg.norm(b)
        assert info == 0, f"info {info}, residual {left}"
        assert left < tolerance, f"residual {left}"
        await case.finish()
    return None
