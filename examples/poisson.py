"""Poisson's equation on a square, by conjugate gradients that stay on the device.

Five points for each element, zeros around them. The residual's norm is plotted where matplotlib
is installed, and the file is named.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse
import trio

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.solvers import cg

SIDE = 48


def laplacian(side: int) -> scipy.sparse.csr_array:
    """Minus the Laplacian on a grid, times the square of the distance of its points."""
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    eye = scipy.sparse.eye_array(side)
    return scipy.sparse.csr_array(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))


def plot(history: list[tuple[int, float]]) -> None:
    """Draw how the residual gets smaller."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.semilogy(*zip(*history, strict=True))
    axes.set_xlabel("iterations")
    axes.set_ylabel("norm of the residual")
    path = Path(tempfile.gettempdir()) / "poisson.png"
    figure.savefig(path)
    print(f"the residual is drawn in {path}")


async def main() -> None:
    """Solve for a right side whose solution is known."""
    matrix = laplacian(SIDE)
    at = np.arange(1, SIDE + 1) / (SIDE + 1)
    exact = np.outer(np.sin(np.pi * at), np.sin(2 * np.pi * at)).ravel()
    history: list[tuple[int, float]] = []
    async with open_device(0) as device:
        a = await device.sparse.put(matrix)
        rng = np.random.default_rng(1)
        right = matrix @ exact + 1e-6 * rng.standard_normal(exact.size)
        b = await device.put(right)
        x, info = await cg(
            device, a, b, rtol=1e-10, callback=lambda *seen: history.append(seen), every=5
        )
        found = await device.get(x)
    iterations, norm = history[-1]
    print(f"info {info}: {iterations} iterations, residual {norm:.1e}")
    print(f"largest error {abs(found - exact).max():.1e}")
    assert info == 0
    assert abs(found - exact).max() < 1e-3
    plot(history)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
