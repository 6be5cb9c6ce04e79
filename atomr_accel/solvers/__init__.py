"""Iterative solvers of linear systems and eigenvalues, under the names of ``scipy.sparse.linalg``.

A step is recorded once, on buffers that stay on the device, and replayed: on CUDA as one graph.
The program checks the progress every few steps, while further steps run. Converged values do not
change any more, so a solution does not depend on when the program checks.
"""

from __future__ import annotations

from ._gmres import gmres
from ._krylov import bicgstab, cg, minres
from ._lobpcg import lobpcg
from ._operators import Operator

__all__ = ["Operator", "bicgstab", "cg", "gmres", "lobpcg", "minres"]
