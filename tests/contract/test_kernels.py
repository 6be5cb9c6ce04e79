"""``device.nvrtc``: kernels from source, and Python functions in their place on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import CompileError, Device, GpuRefSealed, GpuRefStale, LibraryError, Unsupported
from atomr_accel._dtypes import DTYPES
from atomr_accel.lanes import Isolation

from ..harness import cpu_only, needs_nvrtc, on_shared, opened, same_bits

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

AXPY: Final = """
    // y = a * x + y; __global__ void axpy(int not_this_one) {}
    extern "C" __global__ void axpy(float a, const float* __restrict__ x, float *y, int n)
    {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
    }
"""


def axpy(a: Any, x: Any, y: Any, n: Any) -> None:
    y[:n] = a * x[:n] + y[:n]


NOTHING: Final = 'extern "C" __global__ void nothing(int x) {}'


def nothing(x: Any) -> None:
    pass


@settings(max_examples=30)
@given(
    n=st.integers(0, 2000),
    threads=st.integers(1, 1024),
    a=st.floats(-4, 4, width=32),
    seed=st.integers(0, 99),
)
@on_shared
async def test_a_kernel_computes(device: Device, n: int, threads: int, a: float, seed: int) -> None:
    x, y = np.random.default_rng(seed).standard_normal((2, 2000)).astype(np.float32)
    kernel = await device.nvrtc.compile(AXPY, "axpy", cpu=axpy)
    on_x, on_y = await device.put(x, sealed=True), await device.put(y)
    await kernel.launch(max(1, -(-n // threads)), threads, a, on_x, on_y, n)
    y[:n] = np.float32(a) * x[:n] + y[:n]
    np.testing.assert_allclose(await device.get(on_y), y, rtol=1e-5, atol=1e-6)
    assert same_bits(await device.get(on_x), x)


# --- arguments -----------------------------------------------------------------------------

C_TYPES: Final = {
    "bool": "bool",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short int": "uint16",
    "int": "int32",
    "unsigned": "uint32",
    "long": "int64",
    "unsigned long long": "uint64",
    "size_t": "uint64",
    "float": "float32",
    "double": "float64",
}


def store(out: Any, value: Any) -> None:
    out[0] = value


def scalars(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    """Python scalars that fit, and the same as NumPy scalars."""
    plain: st.SearchStrategy[Any]
    if dtype.kind == "b":
        plain = st.booleans()
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        plain = st.integers(int(limits.min), int(limits.max))
    else:
        plain = st.floats(width=8 * dtype.itemsize) | st.integers(-1000, 1000)  # type: ignore[arg-type]
    return plain | plain.map(dtype.type)


@st.composite
def stores(draw: st.DrawFn) -> tuple[str, list[Any]]:
    c_type = draw(st.sampled_from(list(C_TYPES)))
    return c_type, draw(st.lists(scalars(DTYPES[C_TYPES[c_type]]), min_size=1, max_size=5))


@settings(max_examples=60)
@given(stored=stores())
@on_shared
async def test_scalars_arrive_as_what_they_are(
    device: Device, stored: tuple[str, list[Any]]
) -> None:
    c_type, values = stored
    dtype = DTYPES[C_TYPES[c_type]]
    source = f'extern "C" __global__ void store({c_type}* out, {c_type} value) {{ *out = value; }}'
    kernel = await device.nvrtc.compile(source, "store", cpu=store)
    out = await device.zeros(1, dtype)
    for value in values:
        await kernel.launch(1, 1, out, value)
        assert np.array_equal(
            await device.get(out), np.array([value]).astype(dtype), equal_nan=dtype.kind == "f"
        )


@on_shared
async def test_arguments_of_all_sizes_keep_their_places(device: Device) -> None:
    source = """
        extern "C" __global__ void pack(
            char a, double b, bool c, short d, double* out, float e, const int* f, unsigned char g,
            long long h, bool i)
        {
            double all[] = {double(a), b, double(c), double(d), e, double(f[1]), double(g),
                            double(h), double(i)};
            for (int at = 0; at < 9; at++) out[at] = all[at];
        }
    """

    def function(
        a: Any, b: Any, c: Any, d: Any, out: Any, e: Any, f: Any, g: Any, h: Any, i: Any
    ) -> None:
        out[:] = [a, b, c, d, e, f[1], g, h, i]

    kernel = await device.nvrtc.compile(source, "pack", cpu=function)
    out, f = await device.zeros(9), await device.put(np.array([7, -8], np.int32))
    await kernel.launch(1, 1, -1, 2.5, True, -300, out, 0.25, f, 200, -(2**50), False)
    expected = [-1, 2.5, 1, -300, 0.25, -8, 200, -(2**50), 0]
    assert (await device.get(out)).tolist() == expected


@needs_nvrtc
@on_shared
async def test_a_kernel_may_take_nothing(device: Device) -> None:
    source = 'extern "C" __global__ void idle() {}'
    kernel = await device.nvrtc.compile(source, "idle", cpu=lambda: None)
    await kernel.launch(1, 1)
    with pytest.raises(TypeError, match=r"takes 0 arguments \(\), not 1"):
        await kernel.launch(1, 1, 1)


@pytest.mark.parametrize(
    ("c_type", "value", "error"),
    [
        ("int", 2**31, OverflowError),
        ("int", -(2**31) - 1, OverflowError),
        ("int", 2**70, OverflowError),
        ("unsigned", -1, OverflowError),
        ("unsigned char", 256, OverflowError),
        ("unsigned long long", 2**64, OverflowError),
        ("float", 1e39, OverflowError),
        ("float", -1e300, OverflowError),
        ("float", 10**400, OverflowError),
        ("double", 10**400, OverflowError),
        ("float", np.float64(1), TypeError),
        ("int", np.int64(1), TypeError),
        ("int", 1.0, TypeError),
        ("int", np.float32(1), TypeError),
        ("bool", 1, TypeError),
        ("double", 1j, TypeError),
        ("int", "1", TypeError),
        ("int", None, TypeError),
        ("int", [1], TypeError),
        ("int", np.zeros(1, np.int32), TypeError),
    ],
)
@needs_nvrtc
@on_shared
async def test_a_scalar_that_would_change_is_refused(
    device: Device, c_type: str, value: Any, error: type[Exception]
) -> None:
    source = f'extern "C" __global__ void nothing({c_type} x) {{}}'
    kernel = await device.nvrtc.compile(source, "nothing", cpu=nothing)
    with pytest.raises(error, match="argument 0"):
        await kernel.launch(1, 1, value)


@needs_nvrtc
@on_shared
async def test_arguments_are_checked_against_the_declaration(device: Device) -> None:
    kernel = await device.nvrtc.compile(AXPY, "axpy", cpu=axpy)
    x, y = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
    with pytest.raises(TypeError, match=r"axpy takes 4 arguments \(float, .*\), not 3"):
        await kernel.launch(1, 1, 1.0, x, y)
    with pytest.raises(TypeError, match=r"argument 1 .* must be a GpuRef, not float"):
        await kernel.launch(1, 1, 1.0, 1.0, y, 4)
    with pytest.raises(
        TypeError, match=r"argument 0 must be a scalar, because the kernel declares 'float'"
    ):
        await kernel.launch(1, 1, x, x, y, 4)
    wide = await device.zeros(4, np.float64)
    with pytest.raises(TypeError, match=r"argument 1 must have dtype float32, .*, not float64"):
        await kernel.launch(1, 1, 1.0, wide, y, 4)
    assert repr(kernel) == "<Kernel axpy(float, const float*, float*, int)>"


@needs_nvrtc
@on_shared
async def test_pointers_to_integers_take_either_sign(device: Device) -> None:
    source = 'extern "C" __global__ void store(int* out, int value) { *out = value; }'
    kernel = await device.nvrtc.compile(source, "store", cpu=store)
    out = await device.zeros(1, np.uint32)
    await kernel.launch(1, 1, out, 5)
    assert (await device.get(out)).tolist() == [5]
    for other in (np.int64, np.float32, np.int16):
        with pytest.raises(TypeError, match="argument 0 must have dtype"):
            await kernel.launch(1, 1, await device.zeros(1, other), 5)


@needs_nvrtc
@on_shared
async def test_sealed_buffers_are_for_const_pointers_only(device: Device) -> None:
    kernel = await device.nvrtc.compile(AXPY, "axpy", cpu=axpy)
    sealed = await device.put(np.ones(4, np.float32), sealed=True)
    y = await device.zeros(4, np.float32)
    await kernel.launch(1, 32, 2.0, sealed, y, 4)
    assert (await device.get(y)).tolist() == [2.0] * 4
    with pytest.raises(GpuRefSealed, match=r"argument 2 .*is sealed"):
        await kernel.launch(1, 32, 2.0, y, sealed, 4)
    await device.free(y)
    with pytest.raises(GpuRefStale, match=r"argument 2 .*freed"):
        await kernel.launch(1, 32, 2.0, sealed, y, 4)


# --- dimensions ----------------------------------------------------------------------------

DIMENSIONS: Final = """
    extern "C" __global__ void dimensions(int* out) {
        out[0] = gridDim.x; out[1] = gridDim.y; out[2] = gridDim.z;
        out[3] = blockDim.x; out[4] = blockDim.y; out[5] = blockDim.z;
    }
"""


def leading(grid: Any, block: Any, out: Any) -> None:
    out[:] = [*grid, *block]


def by_name(out: Any, *, block: Any, grid: Any) -> None:
    out[:] = [*grid, *block]


@pytest.mark.parametrize("function", [leading, by_name])
@pytest.mark.parametrize(
    ("grid", "block", "seen"),
    [
        (3, 4, [3, 1, 1, 4, 1, 1]),
        ((3,), (4,), [3, 1, 1, 4, 1, 1]),
        ((3, 2), (4, 5), [3, 2, 1, 4, 5, 1]),
        ([3, 2, 7], [4, 5, 6], [3, 2, 7, 4, 5, 6]),
        (np.int64(3), np.uint8(4), [3, 1, 1, 4, 1, 1]),
        (np.array([3, 2]), (np.int32(4), 5), [3, 2, 1, 4, 5, 1]),
        ((70000, 1, 1), (1024, 1, 1), [70000, 1, 1, 1024, 1, 1]),
    ],
)
@on_shared
async def test_grid_and_block_are_one_to_three_numbers(
    device: Device, grid: Any, block: Any, seen: list[int], function: Callable[..., object]
) -> None:
    kernel = await device.nvrtc.compile(DIMENSIONS, "dimensions", cpu=function)
    out = await device.zeros(6, np.int32)
    await kernel.launch(grid, block, out)
    assert (await device.get(out)).tolist() == seen


@pytest.mark.parametrize(
    ("grid", "block", "error"),
    [
        (0, 1, ValueError),
        (1, 0, ValueError),
        (-1, 1, ValueError),
        ((1, 65536), 1, ValueError),
        (2**31, 1, ValueError),
        (1, 1025, ValueError),
        (1, (32, 33), ValueError),
        (1, (1, 1, 65), ValueError),
        ((), 1, ValueError),
        ((1, 1, 1, 1), 1, ValueError),
        (1.0, 1, TypeError),
        ((2.7,), 1, TypeError),
        (1, None, TypeError),
        ("1", 1, TypeError),
    ],
)
@on_shared
async def test_dimensions_no_device_has(
    device: Device, grid: Any, block: Any, error: type[Exception]
) -> None:
    kernel = await device.nvrtc.compile(NOTHING, "nothing", cpu=nothing)
    with pytest.raises(error):
        await kernel.launch(grid, block, 1)


@pytest.mark.parametrize("shared_bytes", [-1, 2**31, 1.5, "1", None])
@on_shared
async def test_shared_memory_no_device_has(device: Device, shared_bytes: Any) -> None:
    kernel = await device.nvrtc.compile(NOTHING, "nothing", cpu=nothing)
    with pytest.raises((TypeError, ValueError), match="shared"):
        await kernel.launch(1, 1, 1, shared=shared_bytes)
    shared: Any = np.int64(1024)
    await kernel.launch(1, 1, 1, shared=shared)


# --- names and sources ---------------------------------------------------------------------

TEMPLATES: Final = """
    namespace deep {
        template <typename T, int N> __global__ void fill(T* out, T value, int) {
            for (int at = 0; at < N; at++) out[at] = value;
        }
    }
    template <typename T> __global__ void store(T* out, T value) { *out = value; }
"""


@on_shared
async def test_templates_are_named_as_in_cpp(device: Device) -> None:
    kernel = await device.nvrtc.compile(TEMPLATES, "store<float>", cpu=store)
    out = await device.zeros(3, np.float32)
    await kernel.launch(1, 1, out, np.float32(2.5))

    def fill(out: Any, value: Any, _: Any) -> None:
        out[:2] = value

    qualified = await device.nvrtc.compile(TEMPLATES, "deep::fill<float, 2>", cpu=fill)
    assert (await device.get(out)).tolist() == [2.5, 0, 0]
    await qualified.launch(1, 1, out, np.float32(-1), 0)
    assert (await device.get(out)).tolist() == [-1, -1, 0]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("", "f"),
        (NOTHING, "nothin"),
        ('extern "C" __device__ void f(int x) {}', "f"),
        ("// __global__ void f() {}", "f"),
    ],
)
@needs_nvrtc
@on_shared
async def test_a_name_that_is_not_there(device: Device, source: str, name: str) -> None:
    with pytest.raises(CompileError, match=f"'{name}'") as info:
        await device.nvrtc.compile(source, name, cpu=nothing)
    assert info.value.library == "nvrtc"
    assert info.value.log


@needs_nvrtc
@on_shared
async def test_a_source_that_does_not_compile(device: Device) -> None:
    source = 'extern "C" __global__ void nothing(int x) { undeclared = x; }'
    with pytest.raises(CompileError, match="undeclared") as info:
        await device.nvrtc.compile(source, "nothing", cpu=nothing)
    error = info.value
    assert (error.library, error.call) == ("nvrtc", "nvrtcCompileProgram")
    assert (error.status, error.status_name) == (6, "NVRTC_ERROR_COMPILATION")
    assert "kernel.cu(1): error" in error.log
    await (await device.nvrtc.compile(NOTHING, "nothing", cpu=nothing)).launch(1, 1, 1)


@needs_nvrtc
@on_shared
async def test_options_reach_the_compiler(device: Device) -> None:
    source = 'extern "C" __global__ void nothing(int x) { int unused = SIZE; }'
    kernel = await device.nvrtc.compile(source, "nothing", cpu=nothing, options=["-DSIZE=3"])
    assert "unused" in kernel.log  # a warning
    with pytest.raises(LibraryError) as info:
        await device.nvrtc.compile(source, "nothing", cpu=nothing, options=["--no-such-option"])
    assert info.value.status_name == "NVRTC_ERROR_INVALID_OPTION"
    assert info.value.fields()["call"] == "nvrtcCompileProgram"


@on_shared
async def test_compile_takes_text(device: Device) -> None:
    compile_ = device.nvrtc.compile
    wrong: list[tuple[Any, Any, dict[str, Any]]] = [
        (b"source", "name", {}),
        (NOTHING, None, {}),
        (NOTHING, "nothing", {"cpu": 3}),
        (NOTHING, "nothing", {"options": [1]}),
        (NOTHING, "nothing", {"options": "--use_fast_math"}),  # would be its letters
    ]
    for source, name, options in wrong:
        with pytest.raises(TypeError):
            await compile_(source, name, **options)
    with pytest.raises(ValueError, match="surrogates"):
        await compile_(NOTHING + "// \ud800", "nothing", cpu=nothing)
    await (await compile_(NOTHING, "nothing", cpu=nothing)).launch(1, 1, 1)


@on_shared
async def test_sources_and_twins_may_be_large(device: Device) -> None:
    ballast = np.arange(1 << 18)  # 2 MiB, more than a socket takes at once
    small = await device.nvrtc.compile(NOTHING, "nothing", cpu=nothing)
    await small.launch(1, 1, 1)

    def function(x: Any) -> None:
        assert ballast.sum() == (1 << 17) * ((1 << 18) - 1)

    kernel = await device.nvrtc.compile(NOTHING + "\n//" + "x" * (1 << 21), "nothing", cpu=function)
    await kernel.launch(1, 1, 1)


# --- on the CPU backend --------------------------------------------------------------------


@cpu_only
@on_shared
async def test_without_a_twin_a_kernel_cannot_run_here(device: Device) -> None:
    kernel = await device.nvrtc.compile(NOTHING, "nothing")
    with pytest.raises(
        Unsupported, match="kernel 'nothing' must have a Python function on the CPU backend; give"
    ):
        await kernel.launch(1, 1, 1)


class Peculiar(Exception):
    """An exception of the program's own."""

    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(one)
        self.two = two

    def __reduce__(self) -> Any:
        return _peculiar, (*self.args, self.two)


def _peculiar(one: int, two: int) -> Peculiar:
    return Peculiar(one, two=two)


class OutOfMemory(Exception):
    """Like the package's by name only."""


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no")


class Untellable(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("no")


@cpu_only
@pytest.mark.parametrize(
    ("make", "arrives_as", "text"),
    [
        (lambda: ValueError("a reason"), "ValueError", "a reason"),
        (lambda: KeyError("key"), "KeyError", "key"),
        (lambda: ZeroDivisionError(), "ZeroDivisionError", ""),
        (lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), "RemoteError", "why"),
        (lambda: FileNotFoundError(2, "No such file"), "FileNotFoundError", "No such file"),
        (lambda: ExceptionGroup("several", [ValueError("one")]), "RemoteError", "several"),
        (lambda: Peculiar(1, two=2), "RemoteError", "Peculiar: 1"),
        (lambda: OutOfMemory("not the package's"), "RemoteError", "OutOfMemory: not the package's"),
        (lambda: Untellable("secret"), "RemoteError", "Untellable: secret"),
        (lambda: ValueError("half a \ud83d pair"), "ValueError", "half a \\ud83d pair"),
        (lambda: Mute("x"), "RemoteError", "Mute: (no message: RuntimeError in __str__)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@on_shared
async def test_cpu_function_error_reaches_the_caller(
    device: Device, make: Callable[[], Exception], arrives_as: str, text: str
) -> None:
    # By name where that is all there is to it: no pickle is read from a lane of kernels.
    def function(x: Any) -> None:
        raise make()

    kernel = await device.nvrtc.compile(NOTHING, "nothing", cpu=function)
    with pytest.raises(Exception) as info:  # noqa: PT011 (all kinds)
        await kernel.launch(1, 1, 1)
    assert info.type.__name__ == arrives_as
    assert text in str(info.value)
    assert any("in function" in note for note in info.value.__notes__)
    assert np.array_equal(await device.get(await device.put(np.arange(3))), np.arange(3))


@cpu_only
@on_shared
async def test_a_twin_sees_sealed_buffers_as_read_only(device: Device) -> None:
    source = 'extern "C" __global__ void sneak(const float* x) {}'

    def sneak(x: Any) -> None:
        x[0] = 1

    kernel = await device.nvrtc.compile(source, "sneak", cpu=sneak)
    sealed = await device.put(np.zeros(3, np.float32), sealed=True)
    with pytest.raises(ValueError, match="read-only"):
        await kernel.launch(1, 1, sealed)
    assert (await device.get(sealed)).tolist() == [0, 0, 0]


@cpu_only
async def test_a_kernel_belongs_to_its_device(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as one, opened(isolation=isolation) as other:
        kernel = await one.nvrtc.compile(AXPY, "axpy", cpu=axpy)
        here, there = await one.zeros(1, np.float32), await other.zeros(1, np.float32)
        with pytest.raises(
            ValueError,
            match=r"argument 1 \('\?'\) must be on .*:0.*, where the op runs, not on",
        ):
            await kernel.launch(1, 1, 1.0, there, here, 1)
