"""Cases of ``device.fft`` against SciPy in a wider type."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import scipy.fft
import scipy.signal

from atomr_accel import Device

from ..libraries.conformance import wide
from .cases import Case, axis, chance, checked, choose, close, same, shape, values

Random = np.random.Generator

PRECISION: Final = {
    "float16": "single", "bfloat16": "single", "float32": "single", "complex64": "single",
    "float64": "double", "complex128": "double", "int32": "double", "uint8": "double",
}  # fmt: skip
COMPLEX_OF: Final = {"single": "complex64", "double": "complex128"}
REAL_OF: Final = {"single": "float32", "double": "float64"}
LENGTHS: Final = (1, 2, 3, 4, 7, 8, 12, 16, 17, 31, 32, 60, 64, 97)


def sides(random: Random, ndim: int, *, large: bool = True) -> tuple[int, ...]:
    """A shape whose sizes are of a pool, for which there are plans."""
    found = [choose(random, LENGTHS[:9] if ndim > 1 else LENGTHS) for _ in range(ndim)]
    if large and chance(random, 0.1):
        found[-1] = choose(random, (127, 256, 1000, 2048, 4096))
    return tuple(found)


def kinds(name: str) -> tuple[str, ...]:
    """The dtypes that a transform takes."""
    real = name.startswith(("rfft", "ihfft"))
    return tuple(kind for kind in PRECISION if not (real and kind.startswith("complex")))


async def transform(case: Case) -> str | None:
    """Fourier transforms along one axis, two, or more."""
    random = case.random
    base = choose(random, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
    many = choose(random, ("", "", "2", "n"))
    name = base + many
    dtype = choose(random, kinds(name))
    ndim = int(random.integers(2 if many == "2" else 1, 4))
    of = sides(random, ndim)
    array = values(random, of, dtype)
    options: dict[str, Any] = {"norm": choose(random, (None, "ortho", "forward"))}
    halved = base in ("irfft", "hfft")
    if not many:
        options["axis"] = axis(random, ndim, none=False)
        if chance(random, 0.4) or (halved and of[options["axis"]] < 2):
            options["n"] = choose(random, LENGTHS)
    else:
        count = 2 if many == "2" else int(random.integers(1, ndim + 1))
        options["axes"] = tuple(map(int, random.permutation(ndim)[:count]))
        if chance(random, 0.4):
            options["s"] = [choose(random, LENGTHS[:9]) for _ in options["axes"]]
        last = options["s"][-1] if "s" in options else 2 * (of[options["axes"][-1]] - 1)
        if (halved and last < 1) or (base == "hfft" and of[options["axes"][-1]] < 2):
            return "SciPy refuses a spectrum of nothing"
    case.tell(op=name, dtype=dtype, **options)
    expected = getattr(scipy.fft, name)(wide(array), **options)
    x = await case.put(array)
    real = halved
    result = np.dtype((REAL_OF if real else COMPLEX_OF)[PRECISION[dtype]])
    if chance(random, 0.2):
        options["out"] = await case.output(expected.shape, result)
    await case.poison(expected.size * result.itemsize)
    got = await case.fetch(await getattr(case.device.fft, name)(x, **options))
    close(got, expected, dtype=result, factor=16.0, magnitude=np.abs(expected).max(initial=0.0))
    return None


async def cosine(case: Case) -> str | None:
    """Cosine and sine transforms."""
    random = case.random
    name = choose(random, ("dct", "idct", "dst", "idst")) + choose(random, ("", "n"))
    dtype = choose(random, ("float16", "float32", "float64", "complex64", "complex128", "int32"))
    ndim = int(random.integers(1, 3))
    of = tuple(max(2, side) for side in sides(random, ndim, large=False))
    array = values(random, of, dtype)
    options: dict[str, Any] = {
        "type": int(random.integers(1, 5)),
        "norm": choose(random, (None, "ortho", "forward")),
    }
    if name.endswith("n"):
        options["axes"] = tuple(map(int, random.permutation(ndim)[: int(random.integers(1, 3))]))
    else:
        options["axis"] = axis(random, ndim, none=False)
        if chance(random, 0.3):
            options["n"] = choose(random, LENGTHS[1:])
    case.tell(op=name, dtype=dtype, **options)
    large = wide(array)
    large = large.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    expected = getattr(scipy.fft, name)(large, **options)
    x = await case.put(array)
    result = (COMPLEX_OF if array.dtype.kind == "c" else REAL_OF)[PRECISION[dtype]]
    await case.poison(expected.size * np.dtype(result).itemsize)
    got = await case.fetch(await getattr(case.device.fft, name)(x, **options))
    close(got, expected, dtype=result, factor=64.0, magnitude=np.abs(expected).max(initial=0.0))
    return None


async def convolution(case: Case) -> str | None:
    """Convolutions, and spectra along a spiral."""
    random = case.random
    dtype = choose(random, ("float32", "float64", "complex64", "complex128"))
    result = np.dtype(dtype)
    if chance(random, 0.3):
        array = values(random, sides(random, int(random.integers(1, 3)), large=False), dtype)
        m = choose(random, LENGTHS)
        case.tell(op="czt", m=m)
        large = array.astype(np.complex128)
        expected = scipy.signal.czt(large, m)
        x = await case.put(array)
        got = await case.fetch(await case.device.fft.czt(x, m))
        most = np.abs(expected).max(initial=1.0)
        close(got, expected, dtype=COMPLEX_OF[PRECISION[dtype]], factor=256.0, magnitude=most)
        return None
    ndim = int(random.integers(1, 3))
    one = values(random, sides(random, ndim, large=False), dtype)
    other = values(random, sides(random, ndim, large=False), dtype)
    name = choose(random, ("fftconvolve", "oaconvolve"))
    mode: Any = choose(random, ("full", "same", "valid"))
    case.tell(op=name, mode=mode)
    larger = [a >= b for a, b in zip(one.shape, other.shape, strict=True)]
    if mode == "valid" and any(larger) and not all(larger):
        return "SciPy refuses: neither array is the larger one"
    reference: Any = scipy.signal.fftconvolve
    expected = reference(wide(one).astype(np.complex128), wide(other), mode)
    expected = expected if result.kind == "c" else expected.real
    x, y = await case.put(one), await case.put(other)
    got = await case.fetch(await getattr(case.device.fft, name)(x, y, mode))
    most = np.linalg.norm(one.ravel()) * np.linalg.norm(other.ravel())
    close(got, expected, dtype=result, factor=64.0, magnitude=most)
    return None


async def moved(case: Case) -> str | None:
    """Shifts and frequencies."""
    random = case.random
    name = choose(random, ("fftshift", "ifftshift", "fftfreq", "rfftfreq"))
    case.tell(op=name)
    if name.endswith("freq"):
        n, d = int(random.integers(1, 100)), float(random.uniform(0.1, 2))
        got = await case.fetch(await getattr(case.device.fft, name)(n, d))
        close(got, getattr(np.fft, name)(n, d), dtype="float64", factor=4.0)
        return None
    array = values(random, shape(random, 1, 3), choose(random, tuple(PRECISION)))
    axes = axis(random, array.ndim, several=True)
    x = await case.put(array)
    got = await case.fetch(await getattr(case.device.fft, name)(x, axes))
    same(got, getattr(np.fft, name)(array, axes))
    return None


OPS: Final[list[Callable[[Case], Awaitable[str | None]]]] = [
    transform, transform, transform, cosine, convolution, moved,
]  # fmt: skip


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    return await checked(device, random, OPS)
