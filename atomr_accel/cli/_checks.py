"""Does a device compute right? One small thing for each library, compared with NumPy."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import scipy.sparse

from .._errors import AccelError, LibraryMissing, Unsupported
from ._documents import CheckPart
from .host._kernels import scale, source_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..device import Device

Pair = tuple["NDArray[Any]", "NDArray[Any]"]
"""The result of a device, and the expected one."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a library.

    Attributes:
        library: the library, as an attribute of ``Device``.
        what: a description of the computation.
        tolerance: the largest allowed deviation, in units of the largest element.
        compute: runs the computation.
        optional: whether the library may be missing, because it has an extra of its own.
    """

    library: str
    what: str
    tolerance: float
    compute: Callable[[Device, np.random.Generator], Awaitable[Pair]]
    optional: bool = False


async def _memory(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal((1 << 18,), np.float32)
    ref = await device.put(x)
    return await device.get(await device.copy(ref)), x


async def _array(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal((64, 1000), np.float32)
    ref = await device.put(x)
    got = await device.get(await device.evaluate(np.exp(ref * 0.5).sum(1)))
    return got, np.exp(x.astype("f8") * 0.5).sum(1)


async def _blas(device: Device, rng: np.random.Generator) -> Pair:
    a, b = rng.standard_normal((192, 256), np.float32), rng.standard_normal((256, 320), np.float32)
    got = await device.get(await device.blas.gemm(await device.put(a), await device.put(b)))
    return got, a.astype("f8") @ b


async def _blaslt(device: Device, rng: np.random.Generator) -> Pair:
    a, b = (rng.standard_normal((128, 128)).astype("f2") for _ in range(2))
    made = await device.blaslt.matmul(await device.put(a), await device.put(b), epilogue="relu")
    return await device.get(made), np.maximum(a.astype("f8") @ b.astype("f8"), 0)


async def _cub(device: Device, rng: np.random.Generator) -> Pair:
    keys = rng.integers(-(1 << 30), 1 << 30, 50_000, np.int32)
    return await device.get(await device.cub.sort(await device.put(keys))), np.sort(keys)


async def _cutlass(device: Device, rng: np.random.Generator) -> Pair:
    """Multiply half-precision matrices. A GPU compiles this for half a minute the first time."""
    a, b = (rng.standard_normal((256, 128)).astype(np.float16) for _ in "ab")
    refs = [await device.put(each) for each in (a, b)]
    made = await device.cutlass.matmul(*refs, trans_b=True, dtype="float32")
    return await device.get(made), a.astype("f4") @ b.T.astype("f4")


async def _dnn(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal((32, 256), np.float32)
    weight, bias = rng.standard_normal((2, 256), np.float32)
    refs = [await device.put(each) for each in (x, weight, bias)]
    made = await device.dnn.layer_norm(*refs)
    wide = x.astype("f8")
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias
    return await device.get(made), expected


async def _fft(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal((16, 1000), np.float32)
    return await device.get(await device.fft.rfft(await device.put(x))), np.fft.rfft(x.astype("f8"))


async def _flash_attention(device: Device, rng: np.random.Generator) -> Pair:
    """One sequence with a softcap, by the kernels of this package."""
    q, k, v = (rng.standard_normal((1, 100, 2, 64)).astype(np.float16) for _ in range(3))
    refs = [await device.put(each) for each in (q, k, v)]
    made: Any = await device.flash_attention.flash_attn_func(
        refs[0], refs[1], refs[2], softcap=5.0, backend="kernel"
    )
    scores = 5 * np.tanh(np.einsum("bqhd,bkhd->bhqk", q.astype("f8"), k.astype("f8")) / 40)
    shares = np.exp(scores)
    shares /= shares.sum(-1, keepdims=True)
    return await device.get(made), np.einsum("bhqk,bkhd->bqhd", shares, v.astype("f8"))


async def _linalg(device: Device, rng: np.random.Generator) -> Pair:
    a = rng.standard_normal((8, 48, 48)) + 10 * np.eye(48)
    b = rng.standard_normal((8, 48, 3))
    x = await device.linalg.solve(await device.put(a), await device.put(b))
    return await device.get(x), np.linalg.solve(a, b)


async def _nvrtc(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal((10_000,), np.float32)
    kernel = await device.nvrtc.compile(source_of("scale"), "scale", cpu=scale)
    ref = await device.put(x)
    await kernel.launch(-(-x.size // 256), 256, ref, x.size, 2.0)
    return await device.get(ref), 2 * x


async def _rng(device: Device, rng: np.random.Generator) -> Pair:
    """Check that the same seed gives the same numbers, and that their mean is right."""
    seed = int(rng.integers(1 << 31))
    once, again = [
        await device.get(await device.rng.default_rng(seed).random(1 << 16, np.float32))
        for _ in range(2)
    ]
    mean = once.mean(dtype="f8") if np.array_equal(once, again) else np.nan
    return np.array([mean]), np.array([0.5])


async def _run(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal(100)
    return np.array(await device.run(sum, x.tolist())), np.array(sum(x.tolist()))


async def _sparse(device: Device, rng: np.random.Generator) -> Pair:
    matrix: Any = scipy.sparse.random_array((300, 200), density=0.05, format="csr", rng=rng)
    x = rng.standard_normal(200)
    made = await device.sparse.matmul(await device.sparse.put(matrix), await device.put(x))
    return await device.get(made), matrix @ x


async def _sparselt(device: Device, rng: np.random.Generator) -> Pair:
    """Multiply a pruned matrix by a dense one, with exact results."""
    a, b = rng.integers(-8, 9, (64, 64)), rng.integers(-8, 9, (64, 32))
    pruned = await device.sparselt.prune(await device.put(a.astype(np.float16)))
    structured = await device.sparselt.compress(pruned)
    made = await device.sparselt.matmul(structured, await device.put(b.astype(np.float16)))
    return await device.get(made), (await device.get(pruned)).astype("f4") @ b


async def _tensor(device: Device, rng: np.random.Generator) -> Pair:
    a, b = rng.standard_normal((6, 20, 30)), rng.standard_normal((30, 6, 10))
    made = await device.tensor.einsum("bik,kbj->jbi", await device.put(a), await device.put(b))
    return await device.get(made), np.einsum("bik,kbj->jbi", a, b)


CHECKS: Final = (
    Check("memory", "put, copy and get", 0.0, _memory),
    Check("array", "sums of exp(x / 2), float32", 1e-5, _array),
    Check("blas", "gemm 192 x 256 x 320, float32", 1e-5, _blas),
    Check("blaslt", "matmul 128 x 128 x 128 and relu, float16", 2e-3, _blaslt),
    Check("cub", "sort of 50,000 int32", 0.0, _cub),
    Check("cutlass", "matmul 256 x 256 x 128, float16", 1e-3, _cutlass, True),
    Check("dnn", "layer_norm of 32 rows, float32", 1e-5, _dnn),
    Check("fft", "rfft of 16 x 1000, float32", 1e-5, _fft),
    Check("flash_attention", "100 queries, 2 heads of 64, float16", 4e-3, _flash_attention),
    Check("linalg", "solve of 8 systems of 48, float64", 1e-12, _linalg),
    Check("nvrtc", "a kernel, compiled and launched", 0.0, _nvrtc),
    # Five standard deviations of the mean of 2**16 numbers, by the mean.
    Check("rng", "65,536 uniform numbers, twice", 1.2e-2, _rng),
    Check("sparse", "a csr matrix of 300 x 200 times a vector, float64", 1e-13, _sparse),
    Check("sparselt", "a 2:4 matrix of 64 x 64 times 64 x 32, float16", 1e-3, _sparselt, True),
    Check("tensor", "einsum bik,kbj->jbi, float64", 1e-13, _tensor),
    Check("run", "a function in the host", 0.0, _run),
)
"""All checks, in the order in which they are made."""


async def checked(device: Device, check: Check) -> CheckPart:
    """Make one check.

    Args:
        device: an open device.
        check: which.

    Returns:
        How it went; errors are in it, not raised.
    """
    rng = np.random.default_rng(hash_of(check.library))
    began = time.perf_counter()

    def part(
        outcome: Literal["ok", "wrong", "missing", "unsupported", "failed"],
        error: float | None = None,
        detail: str | None = None,
    ) -> CheckPart:
        return CheckPart(
            device=device.name,
            library=check.library,
            what=check.what,
            outcome=outcome,
            error=error,
            tolerance=check.tolerance,
            seconds=time.perf_counter() - began,
            detail=detail,
        )

    try:
        error = deviation(*await check.compute(device, rng))
    except LibraryMissing as missing:
        return part("unsupported" if check.optional else "missing", detail=str(missing))
    except Unsupported as unsupported:
        return part("unsupported", detail=str(unsupported))
    except (AccelError, OSError, RuntimeError, TypeError, ValueError, ImportError) as failure:
        return part("failed", detail=f"{type(failure).__name__}: {failure}")
    if error is not None and error <= check.tolerance:
        return part("ok", error)
    return part("wrong", error, None if error is not None else "not finite, or of another shape")


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    return int.from_bytes(text.encode(), "little") % (1 << 32)


def deviation(got: NDArray[Any], expected: NDArray[Any]) -> float | None:
    """Return the largest deviation in units of the largest element; None if it is undefined."""
    if got.shape != expected.shape or not np.isfinite(got).all():
        return None
    if not expected.size:
        return 0.0
    wide = np.result_type(expected.dtype, np.float64)
    largest = float(np.abs(expected).max())
    return float(np.abs(got.astype(wide) - expected.astype(wide)).max()) / (largest or 1.0)
