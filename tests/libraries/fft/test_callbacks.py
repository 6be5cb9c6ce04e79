"""Callbacks of transforms: their effects, their refusals, and the arguments of cuFFT."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import CompileError, Device, GpuRef, Unsupported
from atomr_accel.executors.compiler import compile_linkable
from atomr_accel.libraries.fft._arguments import resolve
from atomr_accel.libraries.fft.host import _hooks
from atomr_accel.libraries.fft.wire._messages import Hook
from atomr_accel.libraries.nvrtc.host.linker import link as nvjitlink

from ... import seeds
from ..conformance import MARKS, on_cuda

pytestmark = MARKS

WINDOW = """
__device__ T window(void* data, unsigned long long offset, void*, void*) {
  T x = ((T*)data)[offset];
  SCALE(x, offset % 7 + 1)
  return x;
}
"""
HALVED = """
__device__ void halved(void* data, unsigned long long offset, T x, void*, void*) {
  SCALE(x, 0.5)
  ((T*)data)[offset] = x;
}
"""
TYPES = {
    "complex64": "cufftComplex",
    "complex128": "cufftDoubleComplex",
    "float32": "cufftReal",
    "float64": "cufftDoubleReal",
}


def of_type(source: str, dtype: Any) -> str:
    """A callback for a dtype."""
    real = np.dtype(dtype).kind == "f"
    scale = "x *= (f);" if real else "x.x *= (f); x.y *= (f);"
    return f"#define SCALE(x, f) {scale}\n{source}".replace("T", TYPES[np.dtype(dtype).name])


def window(values: Any, offset: Any) -> Any:
    return values * (offset % 7 + 1)


def halved(values: Any, offset: Any) -> Any:
    del offset
    return values / 2


CALLS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("fft", "complex64", "complex64", {}),
    ("fft", "complex128", "complex128", {"axis": 0}),
    ("fft", "complex128", "complex128", {"n": 8}),
    ("ifft", "complex64", "complex64", {"norm": "forward"}),
    ("rfft", "float64", "complex128", {}),
    ("irfft", "complex64", "float32", {"n": 12, "norm": "forward"}),
    ("fft2", "complex64", "complex64", {}),
    ("ifft2", "complex128", "complex128", {"norm": "forward"}),
    ("rfft2", "float64", "complex128", {}),
    ("irfft2", "complex64", "float32", {"s": (5, 12), "norm": "forward"}),
    ("fftn", "complex64", "complex64", {}),
    ("ifftn", "complex128", "complex128", {"norm": "forward"}),
    ("rfftn", "float32", "complex64", {}),
    ("irfftn", "complex128", "float64", {"s": (5, 12), "axes": (0, 1), "norm": "forward"}),
]


@pytest.mark.parametrize(
    ("name", "dtype", "result", "options"), CALLS, ids=[f"{each[0]}-{each[1]}" for each in CALLS]
)
async def test_callbacks_load_and_store(
    device: Device, name: str, dtype: str, result: str, options: dict[str, Any]
) -> None:
    shape = (5, 7) if name.startswith("ir") else (5, 12)
    x = seeds.rng().standard_normal(shape).astype(dtype)
    if dtype.startswith("c"):
        x = x + (1j * seeds.rng().standard_normal(shape)).astype(dtype)
    load = device.fft.callback(of_type(WINDOW, dtype), "window", cpu=window)
    store = device.fft.callback(of_type(HALVED, result), "halved", cpu=halved)
    transform, expected = getattr(device.fft, name), getattr(np.fft, name)
    ref = await device.put(x)
    windowed = window(x, np.arange(x.size).reshape(shape))
    for given, want in (
        ({"load": load}, expected(windowed, **options)),
        ({"store": store}, expected(x, **options) / 2),
        ({"load": load, "store": store}, expected(windowed, **options) / 2),
        ({}, expected(x, **options)),
    ):
        got = await device.get(await transform(ref, **options, **given))
        assert got.dtype == result
        near = 1e-12 if result in ("complex128", "float64") else 1e-4
        np.testing.assert_allclose(got, want, rtol=near, atol=near * abs(want).max())


async def test_batches_and_views_call_them_too(device: Device) -> None:
    x = seeds.rng().standard_normal((4, 8, 2)).astype(np.complex64)
    load = device.fft.callback(of_type(WINDOW, x.dtype), "window", cpu=window)
    ref = await device.put(x)
    async with device.batch() as batch:
        spectrum = batch.fft.fft(ref[..., 1], load=load)
    part = x[..., 1]  # what a callback counts is the copy
    expected = np.fft.fft(window(part, np.arange(part.size).reshape(part.shape)))
    np.testing.assert_allclose(await device.get(spectrum), expected, rtol=1e-4, atol=1e-3)


async def test_unsupported_callback_plan_is_refused(device: Device) -> None:
    load = device.fft.callback(WINDOW, "window", cpu=window)
    z, x = [await device.put(np.ones((4, 8), dtype)) for dtype in (np.complex64, np.float32)]
    fft: Any = device.fft
    calls: list[Any] = [
        lambda: fft.ifft(z, load=load),  # its norm scales
        lambda: fft.fft(x, load=load),  # converted
        lambda: fft.irfft(z, 8, norm="forward", load=load),  # cropped
        lambda: fft.fft(z, 16, load=load),  # padded
        lambda: fft.rfft(x, 16, store=load),
        lambda: fft.irfft(z, norm="ortho", load=load),
        lambda: fft.fftn(z, axes=(0, 0), load=load),
        lambda: fft.fft2(z, (4, 16), load=load),
        lambda: fft.fft(z.reshape(2, 4, 4), axis=1, load=load),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match=r"callbacks"):
            await call()


async def test_along_up_to_three_axes_where_the_others_are_neighbours(device: Device) -> None:
    load = device.fft.callback(of_type(WINDOW, np.complex64), "window", cpu=window)
    z = await device.put(np.ones((2, 4, 3, 4), np.complex64))
    for axes in itertools.chain(*(itertools.combinations(range(4), count) for count in (1, 2, 3))):
        others = [axis for axis in range(4) if axis not in axes]
        if others[-1] - others[0] < len(others):
            await device.fft.fftn(z, axes=axes, load=load)
        else:
            with pytest.raises(Unsupported, match="along axes that one plan takes"):
                await device.fft.fftn(z, axes=axes, load=load)
    with pytest.raises(Unsupported, match="callbacks"):
        await device.fft.fftn(z, load=load)


async def test_invalid_callback_is_refused(device: Device) -> None:
    z = await device.put(np.ones(8, np.complex64))
    fft: Any = device.fft
    with pytest.raises(ValueError, match="no function named 'other'"):
        fft.callback(WINDOW, "other", cpu=window)
    for arguments in ((1, "window"), (WINDOW, None)):
        with pytest.raises(TypeError, match="as str"):
            fft.callback(*arguments)
    with pytest.raises(TypeError, match="callable"):
        fft.callback(WINDOW, "window", cpu=3)
    with pytest.raises(TypeError, match=r"load must be what device\.fft\.callback makes, not str"):
        await fft.fft(z, load="window")


@pytest.mark.skipif(on_cuda(), reason="calls none there")
async def test_python_functions_may_write_where_they_read(device: Device) -> None:
    def doubled(values: Any, offset: Any) -> Any:
        del offset
        values *= 2
        return values

    load = device.fft.callback(of_type(WINDOW, np.complex64), "window", cpu=doubled)
    x = await device.put(np.ones(4, np.complex64))
    sealed = await device.put(np.ones(4, np.complex64), sealed=True)
    for ref in (x, x, sealed, sealed):
        spectrum = await device.get(await device.fft.fft(ref, load=load))
        assert list(spectrum) == [8, 0, 0, 0]
        assert list(await device.get(ref)) == [1, 1, 1, 1]


@pytest.mark.skipif(on_cuda(), reason="calls none there")
async def test_python_functions_give_as_many_elements_as_they_get(device: Device) -> None:
    x = await device.put(np.ones(4, np.complex64))
    makers: list[Any] = [lambda _values, _offset: None, lambda values, _offset: values[:2]]
    for maker in makers:
        load = device.fft.callback(WINDOW, "window", cpu=maker)
        with pytest.raises(ValueError, match=r"the callback 'window' gave .* for 4 elements"):
            await device.fft.fft(x, load=load)


@pytest.mark.skipif(on_cuda(), reason="needs none there")
async def test_one_without_a_python_function_is_for_cuda(device: Device) -> None:
    z: GpuRef = await device.put(np.ones(8, np.complex64))
    store = device.fft.callback(HALVED, "halved")
    with pytest.raises(Unsupported, match="cpu=function"):
        await device.fft.fft(z, store=store)


def spec_of(dtype: str, result: str, load: str, store: str) -> Any:
    """A transform with both callbacks."""
    family = {"ff": "fft", "fc": "rfft", "cf": "irfft", "cc": "fft"}[dtype[0] + result[0]]
    hooks = Hook("window", load, b""), Hook("halved", store, b"")
    call = resolve(
        *(family, family, (9,), np.dtype(dtype), (0,), (16,) if family == "irfft" else (9,)),
        "forward" if family == "irfft" else None,
        half=False,
        hooks=hooks,
    )
    return call.spec


@pytest.mark.parametrize(
    ("version", "function"),
    [(11_401, "__cufftXtSetJITCallback_12_7"), (12_000, "cufftXtSetJITCallback")],
)
def test_cufft_is_told_before_a_plan_is_made(
    monkeypatch: pytest.MonkeyPatch, version: int, function: str
) -> None:
    def compile_linkable(source: str, name: str, *_: Any) -> bytes:
        return f"{name}: {source}".encode()

    monkeypatch.setattr(_hooks, "compile_linkable", compile_linkable)
    monkeypatch.setattr(_hooks, "load_nvjitlink", lambda: None)
    log: list[tuple[Any, ...]] = []

    def call(name: str, *arguments: Any) -> None:
        if name == "cufftGetVersion":
            arguments[0][0] = version
        else:
            log.append((name, *arguments))

    library: Any = SimpleNamespace(call=call)
    hooks = _hooks.compile_hooks(spec_of("complex64", "float32", "LOADS", "STORES"), (9, 0))
    _hooks.link(library, 7, hooks)
    (_, handle, name, image, size, kind, info), (_, _, *stored) = log
    assert [each[0] for each in log] == [function] * 2
    assert (handle, name, kind, info) == (7, b"atomr_load", 0, None)  # LD_COMPLEX
    assert size == len(image)
    assert b"cufftComplex atomr_load(" in image
    assert b"\nLOADS\n" in image
    assert (stored[0], stored[3]) == (b"atomr_store", 6)  # ST_REAL
    assert b"cufftReal element" in stored[1]
    assert b"halved(data, offset, element" in stored[1]


PAIRS = [
    ("complex64", "complex64"),
    ("complex128", "float64"),
    ("float32", "complex64"),
    ("float64", "complex128"),
    ("complex64", "float32"),
]


@pytest.mark.headers
@pytest.mark.parametrize(("dtype", "result"), PAIRS)
def test_nvrtc_compiles_them_for_linking(dtype: str, result: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    spec = spec_of(dtype, result, of_type(WINDOW, dtype), of_type(HALVED, result))
    loads, stores = _hooks.compile_hooks(spec, (9, 0))
    assert loads.image
    assert stores.image
    wrong = spec_of(dtype, result, of_type(HALVED, dtype).replace("halved", "window"), HALVED)
    with pytest.raises(CompileError, match="callback"):
        _hooks.compile_hooks(wrong, (9, 0))


CALLER = """
__device__ READ LOAD(void*, unsigned long long, void*, void*);
__device__ void STORE(void*, unsigned long long, WRITTEN, void*, void*);
extern "C" __global__ void transform(void* source, void* target) {
  READ x = LOAD(source, threadIdx.x, nullptr, nullptr);
  STORE(target, threadIdx.x, reinterpret_cast<WRITTEN&>(x), nullptr, nullptr);
}
"""
"""Declarations of callbacks with cuFFT's exact types, as functions of C++."""

BUILTIN = {"complex64": "float2", "complex128": "double2", "float32": "float", "float64": "double"}

BOTH = """
#include <cuda_fp16.h>
__constant__ float two = 2;
__device__ T doubled(T x) { SCALE(x, two) return x; }
linkage __device__ T window(void* data, size at, void*, void*) { return doubled(((T*)data)[at]); }
linkage __device__ void halved(void* data, size at, T x, void*, void*) {
  ((T*)data)[at] = doubled(x);
}
"""


@pytest.mark.headers
@pytest.mark.parametrize(("dtype", "result"), PAIRS)
@pytest.mark.parametrize(
    ("linkage", "offset"),
    [("", "unsigned long long"), ("static", "unsigned long long"), ('extern "C"', "size_t")],
)
def test_callbacks_link_with_their_callers(
    dtype: str, result: str, linkage: str, offset: str
) -> None:
    pytest.importorskip("cuda.bindings.nvjitlink")
    source = BOTH.replace("linkage", linkage).replace("size", offset)
    hooks = _hooks.compile_hooks(
        spec_of(dtype, result, of_type(source, dtype), of_type(source, result)), (9, 0)
    )
    caller = CALLER
    words = "LOAD", "STORE", "READ", "WRITTEN"
    names = *(hook.name.decode() for hook in hooks), BUILTIN[dtype], BUILTIN[result]
    for word, name in zip(words, names, strict=True):
        caller = caller.replace(word, name)
    parts = [("caller", compile_linkable(caller, "caller", (7, 5), ()))]
    parts += [(hook.name.decode(), hook.image) for hook in hooks]
    cubin, _ = nvjitlink(parts, "sm_90")
    assert b"transform" in cubin


@pytest.mark.headers
def test_errors_tell_lines_of_the_callback() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    header = "#include <cuda_fp16.h>"
    for source, where in (
        (f"{header}\n{WINDOW}", "callback(3): error"),  # what is T?
        (WINDOW.replace("\n", "\n#include <oh.h>\n", 1), "callback(2): catastrophic error"),
        ("int window();", "call of the callback(3): error"),
    ):
        with pytest.raises(CompileError, match=re.escape(where)):
            _hooks.compile_hooks(spec_of("complex64", "complex64", source, HALVED), (9, 0))
