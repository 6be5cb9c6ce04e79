"""Ops of every library that give the same bits again on the CPU: a table for random programs.

Each row has what the op is given, and how it is called. Inputs are given by a letter and a shape,
such as ``"x 4x4"``; see ``INPUTS``. They are such that what the op gives hardly depends on
roundings: another backend, which adds up in another order, gives nearly the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.special
from numpy.typing import NDArray

Drawn = np.random.Generator
REAL: Final = "fd"
ANY: Final = "fdFD"


@dataclass(frozen=True, slots=True)
class Op:
    """An op, and its inputs.

    Attributes:
        dtypes: characters of the dtypes of its inputs, of which one is taken.
        inputs: a letter and a shape each.
        call: called with a device or a batch, and with the inputs.
        alone: whether it cannot be in a batch.
        writes: whether it writes into its inputs.
    """

    dtypes: str
    inputs: tuple[str, ...]
    call: Callable[..., Any]
    alone: bool = False
    writes: bool = False


def plain(rng: Drawn, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Normally distributed numbers with few bits, of which few sums cancel."""
    drawn = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        drawn = drawn + 1j * rng.standard_normal(shape)
    return (np.round(drawn * 64) / 64).astype(dtype)


def positive(rng: Drawn, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """From 0.5 to 2, real."""
    return (np.round(rng.uniform(0.5, 2, shape) * 64) / 64).astype(dtype)


def distinct(rng: Drawn, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Whole numbers in some order, none of them twice."""
    size = int(np.prod(shape))
    return (rng.permutation(size) - size // 2).reshape(shape).astype(dtype)


def definite(rng: Drawn, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Hermitian, positive definite and well conditioned, with eigenvalues far from each other."""
    n = shape[-1]
    a = plain(rng, shape, dtype) / 8
    return (a + np.swapaxes(a.conj(), -1, -2) + np.diag(np.arange(2.0, n + 2))).astype(dtype)


def regular(rng: Drawn, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Well conditioned, not symmetric; only the first row is a pivot."""
    return (plain(rng, shape, dtype) / 8 + np.diag(np.arange(2.0, shape[-1] + 2))).astype(dtype)


def lower(rng: Drawn, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Lower triangular and well conditioned."""
    return np.tril(regular(rng, shape, dtype))


def indices(rng: Drawn, shape: tuple[int, ...], _dtype: Any) -> NDArray[Any]:
    """Indices below 4."""
    return rng.integers(0, 4, shape)


def flags(rng: Drawn, shape: tuple[int, ...], _dtype: Any) -> NDArray[Any]:
    """Truths."""
    return rng.random(shape) < 0.5


INPUTS: Final[dict[str, Callable[[Drawn, tuple[int, ...], Any], NDArray[Any]]]] = {
    "x": plain,
    "p": positive,
    "u": distinct,
    "s": definite,
    "r": regular,
    "l": lower,
    "i": indices,
    "b": flags,
}


def made(spec: str, dtype: str, rng: Drawn) -> NDArray[Any]:
    """An input, of what a row says."""
    letter, shape = spec.split()
    return INPUTS[letter](rng, tuple(map(int, shape.split("x"))), np.dtype(dtype))


def _each(name: str) -> Callable[..., Any]:
    """A method of a library, with all that it is given."""
    library, method = name.split(".")
    return lambda d, *given: getattr(getattr(d, library), method)(*given)


def _family(
    names: str, library: str, dtypes: str, *inputs: str, alone: bool = False
) -> dict[str, Op]:
    """Ops that are given the same."""
    titles = [f"{library}.{name}" for name in names.split()]
    return {title: Op(dtypes, inputs, _each(title), alone) for title in titles}


BLAS: Final = {
    **_family("nrm2 asum amax amin", "blas", ANY, "x 16"),
    **_family("gemv", "blas", ANY, "x 4x4", "x 4"),
    **_family("symm", "blas", ANY, "s 4x4", "x 4x4"),
    **_family("symv", "blas", REAL, "s 4x4", "x 4"),
    **_family("trmm", "blas", ANY, "l 4x4", "x 4x4"),
    **_family("trsm", "blas", ANY, "l 4x4", "x 4x4"),
    **_family("trsv trmv", "blas", ANY, "l 4x4", "x 4"),
    **_family("matmul geam", "blas", ANY, "x 4x4", "x 4x4"),
    "blas.gemm batch": Op(ANY, ("x 3x4x4", "x 3x4x4"), lambda d, a, b: d.blas.gemm(a, b)),
    "blas.gemm_batched": Op(
        ANY, ("x 4x4", "x 4x3"), lambda d, a, b: d.blas.gemm_batched([a, a], [b, b])
    ),
    "blas.gemm half": Op("e", ("x 4x6", "x 6x5"), lambda d, a, b: d.blas.gemm(a, b)),
    "blas.dot": Op(REAL, ("p 16", "p 16"), lambda d, x, y: d.blas.dot(x, y)),
    "blas.dotc": Op("FD", ("p 16", "p 16"), lambda d, x, y: d.blas.dotc(x, y)),
    "blas.axpy": Op(ANY, ("x 8", "x 8"), lambda d, x, y: d.blas.axpy(x, y, a=0.5), writes=True),
    "blas.scal": Op(ANY, ("x 8",), lambda d, x: d.blas.scal(0.75, x), writes=True),
    "blas.copy": Op(ANY, ("x 8", "x 8"), lambda d, x, y: d.blas.copy(x, y), writes=True),
    "blas.swap": Op(ANY, ("x 8", "x 8"), lambda d, x, y: d.blas.swap(x, y), writes=True),
    "blas.gemm": Op(
        ANY, ("x 6x4", "x 6x5"), lambda d, a, b: d.blas.gemm(a, b, alpha=0.5, trans_a="T")
    ),
    "blas.syrk": Op(ANY, ("x 4x6",), lambda d, a: d.blas.syrk(a, lower=True)),
    "blas.syr2k": Op(REAL, ("x 4x3", "x 4x3"), lambda d, a, b: d.blas.syr2k(a, b, lower=True)),
    "blas.herk": Op("FD", ("x 4x6",), lambda d, a: d.blas.herk(a)),
    "blas.hemm": Op("FD", ("s 4x4", "x 4x4"), lambda d, a, b: d.blas.hemm(a, b)),
    "blas.dgmm": Op(ANY, ("x 4x4", "x 4"), lambda d, a, x: d.blas.dgmm(a, x, side="R")),
    "blas.ger": Op(REAL, ("x 4", "x 5"), lambda d, x, y: d.blas.ger(x, y)),
    "blas.matinv_batched": Op(ANY, ("r 3x4x4",), lambda d, a: d.blas.matinv_batched(a)),
}

LINALG: Final = {
    **_family("cholesky inv det slogdet eigvalsh cond matrix_rank", "linalg", ANY, "s 4x4"),
    **_family("svdvals pinv norm", "linalg", ANY, "r 4x4"),
    "linalg.expm": Op(ANY, ("x 3x3",), lambda d, a: d.linalg.expm(a), alone=True),
    **_family("solve", "linalg", ANY, "r 4x4", "x 4x2"),
    "linalg.lstsq": Op(ANY, ("r 4x4", "x 4"), lambda d, a, b: d.linalg.lstsq(a, b)),
    "linalg.power": Op(ANY, ("r 4x4",), lambda d, a: d.linalg.matrix_power(a, 3)),
    "linalg.lu_factor": Op(ANY, ("r 4x4",), lambda d, a: d.linalg.lu_factor(a)),
    "linalg.triangular": Op(
        ANY, ("l 4x4", "x 4"), lambda d, a, b: d.linalg.solve_triangular(a, b, lower=True)
    ),
    "linalg.polar": Op(ANY, ("r 4x4",), lambda d, a: d.linalg.polar(a)),
}

FFT: Final = {
    **_family("fft ifft", "fft", "FD", "x 12"),
    **_family("rfft ihfft", "fft", REAL, "x 3x10"),
    **_family("fft2 ifft2 fftn", "fft", "FD", "x 4x6"),
    **_family("rfft2 rfftn", "fft", REAL, "x 4x6"),
    **_family("dct dst idct idst dctn idstn", "fft", REAL, "x 4x8"),
    **_family("fftshift ifftshift", "fft", ANY, "x 4x5"),
    **_family("fftconvolve", "fft", ANY, "p 12", "p 5"),
    "fft.irfft": Op("FD", ("x 5",), lambda d, x: d.fft.irfft(x, n=8)),
    "fft.hfft": Op("FD", ("x 5",), lambda d, x: d.fft.hfft(x, n=8)),
    "fft.norm": Op("FD", ("x 4x6",), lambda d, x: d.fft.fft(x, axis=0, norm="ortho")),
}

ARRAY: Final = {
    **_family("sort argsort cumsum max min ptp argmax argmin median", "array", "fdil", "u 24"),
    **_family("sum mean prod cumprod std var norm nansum nanmax nanstd", "array", REAL, "p 4x6"),
    **_family("any all count_nonzero", "array", "?", "b 4x5"),
    **_family("nonzero flatnonzero argwhere", "array", "?", "b 4x5", alone=True),
    **_family("unique_values bincount", "array", "l", "i 20", alone=True),
    **_family("tril triu ascontiguousarray diag", "array", ANY, "x 4x4"),
    "array.sum axis": Op(ANY, ("x 5x4",), lambda d, x: d.array.sum(x, axis=1)),
    "array.mean axis": Op(ANY, ("x 5x4",), lambda d, x: d.array.mean(x, axis=0, keepdims=True)),
    "array.take": Op(ANY, ("x 4x3", "i 5"), lambda d, x, i: d.array.take(x, i, axis=0)),
    "array.along": Op(
        ANY, ("x 4x5", "i 2x5"), lambda d, x, i: d.array.take_along_axis(x, i, axis=0)
    ),
    "array.getitem": Op(ANY, ("x 4x6",), lambda d, x: d.array.getitem(x, (slice(1, 3), [0, 5]))),
    "array.setitem": Op(
        ANY, ("x 4x6", "x 4"), lambda d, x, y: d.array.setitem(x, (..., 2), y), writes=True
    ),
    "array.compress": Op(ANY, ("b 6", "x 6"), lambda d, b, x: d.array.compress(b, x), alone=True),
    "array.clip": Op(REAL, ("x 20",), lambda d, x: d.array.clip(x, -0.5, 0.5)),
    "array.round": Op(REAL, ("x 20",), lambda d, x: d.array.round(x, 1)),
    "array.concatenate": Op(ANY, ("x 2x3", "x 4x3"), lambda d, x, y: d.array.concatenate([x, y])),
    "array.stack": Op(ANY, ("x 3", "x 3"), lambda d, x, y: d.array.stack([x, y], axis=1)),
    "array.repeat": Op(ANY, ("x 3x2",), lambda d, x: d.array.repeat(x, 2, axis=0)),
    "array.tile": Op(ANY, ("x 3x2",), lambda d, x: d.array.tile(x, (2, 2))),
    "array.roll": Op(ANY, ("x 4x5",), lambda d, x: d.array.roll(x, 2, axis=1)),
    "array.pad": Op(ANY, ("x 3x4",), lambda d, x: d.array.pad(x, 1)),
    "array.where": Op(ANY, ("b 4x4", "x 4x4", "x 4x4"), lambda d, b, x, y: d.array.where(b, x, y)),
    "array.quantile": Op(REAL, ("u 15",), lambda d, x: d.array.quantile(x, 0.25)),
    "array.searchsorted": Op(
        REAL, ("u 16", "u 5"), lambda d, a, v: d.array.searchsorted(a, v, sorter=None)
    ),
    "array.topk": Op("fdil", ("u 20",), lambda d, x: d.array.topk(x, 3)),
    "array.histogram": Op(REAL, ("u 20",), lambda d, x: d.array.histogram(x, 5, (-10, 10))),
    "array.linspace": Op("f", (), lambda d: d.array.linspace(0, 1, 9)),
    "array.astype": Op(REAL, ("x 12",), lambda d, x: d.array.astype(x, np.float16)),
}

EXPRESSIONS: Final = {
    f"evaluate {name}": Op(dtypes, inputs, lambda d, *given, of=of: d.evaluate(of(*given)))
    for name, (dtypes, inputs, of) in {
        "elementary": (REAL, ("p 4x4", "p 4"), lambda x, y: np.log(x) + np.sqrt(y)),
        "trigonometric": (REAL, ("x 12",), lambda x: np.sin(x) * np.cos(x) + np.tanh(x)),
        "exponential": (REAL, ("x 12",), lambda x: np.exp(x) / (1 + np.exp(-x))),
        "power": (REAL, ("p 12", "x 12"), lambda x, y: x**y),
        "hyperbolic": (REAL, ("p 12",), lambda x: np.arctan2(np.sinh(x), np.arcsinh(x) + 1)),
        "chosen": (REAL, ("x 4x4", "x 4x4"), lambda x, y: np.where(x > y, x - 1, y * 2)),
        "compared": (REAL, ("x 4x4", "x 4x4"), lambda x, y: (x > y) & (x < 1)),
        "rounded": (REAL, ("x 12",), lambda x: np.floor(x * 3) + np.trunc(x)),
        "complex": ("FD", ("x 12", "x 12"), lambda x, y: x * np.conj(y) + 1j * y),
        "modulus": ("FD", ("x 12",), lambda x: np.abs(x) + x.real),
        "whole": ("il", ("u 12", "u 12"), lambda x, y: (x // 3) * y + (x % 5) ** 2),
        "bits": ("il", ("u 12", "u 12"), lambda x, y: (x & 7) | (y << 2) ^ x),
        "half": ("e", ("x 12", "x 12"), lambda x, y: x * y + 0.5),
        "special": (REAL, ("x 12",), lambda x: scipy.special.erf(x) + scipy.special.expit(x)),
        "reduced": (REAL, ("p 4x6",), lambda x: np.add.reduce(x * x, axis=1)),
        "largest": (REAL, ("x 4x6",), lambda x: np.maximum.reduce(x, axis=0)),
        "widened": ("f", ("x 12",), lambda x: x.astype(np.float64) * 3),
    }.items()
}

DNN: Final = {
    **_family("relu sigmoid tanh gelu silu elu softplus leaky_relu", "dnn", "fe", "x 2x3x4x4"),
    **_family("relu_grad sigmoid_grad tanh_grad silu_grad", "dnn", "f", "x 3x8", "x 3x8"),
    **_family("softmax log_softmax", "dnn", "fe", "x 4x6"),
    **_family("layer_norm", "dnn", "fe", "x 4x8", "p 8", "x 8"),
    **_family("rms_norm", "dnn", "fe", "x 4x8", "p 8"),
    "dnn.reduce": Op("f", ("p 4x6",), lambda d, x: d.dnn.reduce(x, "sum", axis=1)),
    "dnn.conv": Op("f", ("x 2x3x6x6", "x 4x3x3x3"), lambda d, x, w: d.dnn.conv(x, w, padding=1)),
    "dnn.conv_transpose": Op(
        "f", ("x 2x4x4x4", "x 4x3x3x3"), lambda d, x, w: d.dnn.conv_transpose(x, w, stride=2)
    ),
    "dnn.max_pool": Op("f", ("u 1x2x6x6",), lambda d, x: d.dnn.max_pool(x, 2)),
    "dnn.avg_pool": Op("f", ("p 1x2x6x6",), lambda d, x: d.dnn.avg_pool(x, 3, stride=2)),
    "dnn.interpolate": Op("f", ("x 1x2x4x4",), lambda d, x: d.dnn.interpolate(x, (8, 8))),
    "dnn.unfold": Op("f", ("u 1x2x4x4",), lambda d, x: d.dnn.unfold(x, 2)),
    "dnn.affine_grid": Op("f", ("u 2x2x3",), lambda d, x: d.dnn.affine_grid(x, (2, 1, 3, 3))),
    "dnn.cross_entropy": Op("f", ("x 6x4", "i 6"), lambda d, x, t: d.dnn.cross_entropy(x, t)),
}

# Of few dtypes, since each is a kernel that takes seconds to compile.
CUB: Final = {
    **_family("sort argmin argmax", "cub", "f", "u 24"),
    **_family("sort_pairs", "cub", "l", "u 24", "u 24"),
    "cub.reduce": Op("fl", ("p 24",), lambda d, x: d.cub.reduce(x, "sum")),
    "cub.scan": Op("f", ("p 24",), lambda d, x: d.cub.inclusive_scan(x, "sum")),
    "cub.histogram": Op("f", ("u 24",), lambda d, x: d.cub.histogram_even(x, 6, -12.0, 12.0)),
}

TENSOR: Final = {
    "tensor.einsum": Op(
        ANY, ("x 3x4", "x 4x5"), lambda d, x, y: d.tensor.einsum("ij,jk->ki", x, y)
    ),
}

MOVED: Final = {
    "put": Op("?fdFDilehbBH", ("u 2x3",), lambda d, x: d.copy(x)),
    "fill": Op(REAL, ("x 7",), lambda d, x: d.fill(x, 0.25), writes=True),
    "transposed": Op(ANY, ("x 3x4",), lambda d, x: d.copy(x.T)),
    "backwards": Op(ANY, ("x 3x4",), lambda d, x: d.copy(x[::-1, ::2])),
}

DRAWN: Final[dict[str, dict[str, Any]]] = {
    "random": {"size": 5},
    "normal": {"loc": 1.0, "scale": 2.0, "size": (2, 3), "dtype": "float32"},
    "uniform": {"low": -1.0, "high": 1.0, "size": 6},
    "lognormal": {"mean": 0.0, "sigma": 0.5, "size": 4},
    "exponential": {"scale": 2.0, "size": 5, "dtype": "float32"},
    "gamma": {"shape": 2.5, "size": 4},
    "beta": {"a": 1.5, "b": 2.5, "size": 4},
    "integers": {"low": -5, "high": 50, "size": (3, 2)},
    "poisson": {"lam": 3.0, "size": 6},
    "binomial": {"n": 10, "p": 0.25, "size": 5},
    "geometric": {"p": 0.4, "size": 4},
    "permutation": {"x": 12},
    "choice": {"a": 9, "size": 4},
}
"""Methods of generators, which give the same on the backend that recorded alone."""

OPS: Final[dict[str, Op]] = {
    **BLAS,
    **LINALG,
    **FFT,
    **ARRAY,
    **EXPRESSIONS,
    **DNN,
    **CUB,
    **TENSOR,
    **MOVED,
}
