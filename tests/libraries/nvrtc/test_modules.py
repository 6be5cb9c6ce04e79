"""Modules: many kernels of one source, their structs and variables, and linked code."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest
from msgspec.structs import replace

from atomr_accel import CompileError, Device, GpuRefStale, LibraryMissing, Unsupported
from atomr_accel.executors import compiler as _compiler
from atomr_accel.libraries.nvrtc._options import CompileOptions
from atomr_accel.libraries.nvrtc.host import _program
from atomr_accel.libraries.nvrtc.host.linker import kind_of
from atomr_accel.libraries.nvrtc.structures import structure
from atomr_accel.libraries.nvrtc.wire.messages import Compile, KernelEntry, LinkImage, LinkInput
from atomr_accel.testing import poison

from ...harness import cpu_only, needs_nvrtc, on_shared, opened

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

SOURCE: Final = """
    struct Line { float slope; int steps; double offset; };

    __constant__ float table[4];
    __device__ int counter;

    namespace deep {
        template <typename T> __global__ void fill(T* out, T value, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = value;
        }
    }

    extern "C" {
        __global__ void __launch_bounds__(128) evaluate(double* out, const Line line, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = line.slope * i * line.steps + line.offset;
        }

        __global__ void look_up(float* out, const int* at, int n) {
            for (int i = 0; i < n; i++) out[i] = table[at[i]];
            counter += n;
        }
    }
"""

LINE: Final = np.dtype([("slope", "f4"), ("steps", "i4"), ("offset", "f8")], align=True)


class Line(ctypes.Structure):
    _fields_ = (
        ("slope", ctypes.c_float),
        ("steps", ctypes.c_int),
        ("offset", ctypes.c_double),
    )


class Swapped(ctypes.BigEndianStructure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_double))


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_uint8), ("b", ctypes.c_bool))


def fill(out: Any, value: Any, n: Any) -> None:
    out[:n] = value


def evaluate(out: Any, line: Any, n: Any) -> None:
    out[:n] = line["slope"] * np.arange(n) * line["steps"] + line["offset"]


def look_up(out: Any, at: Any, n: Any, *, table: Any, counter: Any) -> None:
    out[:n] = table[at[:n]]
    counter[...] += n


TWINS: Final[Mapping[str, Callable[..., object]]] = {
    "deep::fill": fill,
    "evaluate": evaluate,
    "look_up": look_up,
}
NAMES: Final = ("deep::fill<float>", "deep::fill<int>", "evaluate", "look_up")
TABLE: Final = np.array([1, 2, 3, 4], np.float32)


async def compiled(device: Device) -> Any:
    return await device.nvrtc.compile_module(
        SOURCE,
        NAMES,
        cpu=TWINS,
        structs={"Line": LINE},
        variables={"table": TABLE, "counter": np.zeros((), np.int32)},
    )


# --- kernels and structs --------------------------------------------------------------------


@on_shared
async def test_all_kernels_of_a_source(device: Device) -> None:
    module = await compiled(device)
    assert module.names == NAMES
    assert module.variables == ("table", "counter")
    floats = await device.zeros(10, np.float32)
    await (await module.kernel("deep::fill<float>")).launch(1, 32, floats, 1.5, 10)
    integers = await device.zeros(10, np.int32)
    await (await module.kernel("deep::fill<int>")).launch(1, 32, integers, 7, 10)
    assert (await device.get(floats)).tolist() == [1.5] * 10
    assert (await device.get(integers)).tolist() == [7] * 10
    with pytest.raises(KeyError, match="no kernel 'fill'; it has 'deep::fill<float>'"):
        await module.kernel("fill")
    with pytest.raises(KeyError, match="no variable 'tables'; it has 'table', 'counter'"):
        await module.variable("tables")
    assert repr(module).startswith("<KernelModule of deep::fill<float>, ")


@pytest.mark.parametrize(
    "line",
    [
        (0.5, 3, 1.0),
        np.array((0.5, 3, 1.0), LINE),
        np.array((0.5, 3, 1.0), LINE)[()],
        Line(0.5, 3, 1.0),
    ],
    ids=["tuple", "array", "void", "ctypes"],
)
@on_shared
async def test_structs_by_value(device: Device, line: Any) -> None:
    kernel = await (await compiled(device)).kernel("evaluate")
    out = await device.zeros(5)
    await kernel.launch(1, 32, out, line, 5)
    assert (await device.get(out)).tolist() == [1, 2.5, 4, 5.5, 7]


@on_shared
async def test_structs_that_are_others_are_refused(device: Device) -> None:
    kernel = await (await compiled(device)).kernel("evaluate")
    out = await device.zeros(5)
    if kernel.parameters is None:
        pytest.skip("no compiler has told the parameters")
    packed = np.dtype([("slope", "f4"), ("offset", "f8"), ("steps", "i4")])
    for wrong, error in (
        (np.zeros((), packed), r"takes a struct of .*'slope'.*, not of"),
        ((1, 2), "takes the fields"),
        (("a", 2, 3), "takes the fields"),
        (3.0, r"argument 1 \('Line'\) is a struct"),
        (out, "is a struct"),
    ):
        with pytest.raises(TypeError, match=error):
            await kernel.launch(1, 32, out, wrong, 5)
    with pytest.raises(TypeError, match=r"argument 2 must be int32, .* 'int', not a struct"):
        await kernel.launch(1, 32, out, (1, 2, 3), np.zeros((), LINE))


FIELDS: Final = np.dtype(
    [("n", "i4"), ("x", "f4"), ("pairs", [("a", "u1"), ("b", "?")], 2), ("text", "S3")]
)


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (
            (1.5, 0, [(1, 0), (2, 0)], b""),
            TypeError,
            r"argument 1 \('F f'\) takes the fields \[\('n', '<i4'\), \('x', '<f4'\),",
        ),
        (("7", 0, [(1, 0), (2, 0)], b""), TypeError, "'n' must be a scalar for 'n', not str"),
        ((2**40, 0, [(1, 0), (2, 0)], b""), OverflowError, "argument 1 .*'n' does not fit"),
        ((1, 1e300, [(1, 0), (2, 0)], b""), OverflowError, r"argument 1 .*'x' does not fit"),
        ((1, None, [(1, 0), (2, 0)], b""), TypeError, "'x' must be a scalar"),
        (
            (1, 1j, [(1, 0), (2, 0)], b""),
            TypeError,
            r"argument 1 \('F f'\) takes the fields \[\('n', '<i4'\), \('x', '<f4'\),",
        ),
        ((1, np.float64(1), [(1, 0), (2, 0)], b""), TypeError, "wider than 'x'"),
        ((1, 1, ((1, True), (256, True)), b""), OverflowError, r"'pairs\[1\].a' does not fit"),
        (
            (1, 1, ((1, 2), (2, True)), b""),
            TypeError,
            r"argument 1 \('F f'\) takes the fields \[\('n', '<i4'\), \('x', '<f4'\),",
        ),
        ((1, 1, [(1, True)], b""), TypeError, "'pairs' takes 2 values"),
        ((1, 1, [(1,), (2,)], b""), TypeError, r"'pairs\[0\]' has 2 fields, not 1"),
        ((1, 1, [np.zeros((), "u1,i8")] * 2, b""), TypeError, r"\[0\]' takes a struct or a tuple"),
        ((1, 1), TypeError, "it has 4 fields, not 2"),
    ],
)
def test_numbers_in_structs_are_as_others(value: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        structure(value, FIELDS, None, "argument 1 ('F f')")


def test_struct_accepts_fitting_values() -> None:
    value = (np.array(7, "i4"), 3, ((1, True), (2, False)), b"ab")
    pairs = np.array([(1, True), (2, False)], FIELDS["pairs"].base)
    for given in (value, (np.int8(7), 3.0, pairs, b"ab"), (7, 3, [pairs[0], Pair(2, 0)], b"ab")):
        found = structure(given, FIELDS, None, "argument 1")
        assert found.data == np.array((7, 3, [(1, True), (2, False)], b"ab"), FIELDS).tobytes()


@on_shared
async def test_a_struct_says_itself_what_it_is(device: Device) -> None:
    """The argument's dtype describes the struct if the signature does not."""
    kernel = await device.nvrtc.compile(SOURCE, "evaluate", cpu=evaluate)
    out = await device.zeros(2)
    await kernel.launch(1, 32, out, np.array((1, 1, 2), LINE), 2)
    assert (await device.get(out)).tolist() == [2, 3]
    with pytest.raises(TypeError, match=r"is a struct|must be a scalar"):
        await kernel.launch(1, 32, out, (1, 1, 2), 2)
    for swapped in (np.zeros((), LINE.newbyteorder()), Swapped(1, 2)):
        with pytest.raises(TypeError, match="not in the device's order"):
            await kernel.launch(1, 32, out, swapped, 2)


@pytest.mark.parametrize(
    ("structs", "error"),
    [
        ([("Line", LINE)], "structs must map"),
        ({"Line": np.float32}, "must be a structured dtype"),
        ({"Line": np.dtype("f4")}, "must have fields"),
        ({"Line": np.dtype([("a", object)])}, "none of objects"),
        ({3: LINE}, "structs must map"),
        ({"Line": np.dtype([("a", "i4"), ("b", [("c", ">f8")], 2)])}, r"'b.c' of .*Line.* is >f8"),
        ({"Line": np.dtype([("a", "M8[s]")])}, "'a' of .* datetime64.*C\\+\\+ does not know"),
    ],
)
async def test_invalid_struct_is_refused(device: Device, structs: Any, error: str) -> None:
    with pytest.raises(TypeError, match=error):
        await device.nvrtc.compile_module(SOURCE, ["evaluate"], cpu=evaluate, structs=structs)


# --- variables ------------------------------------------------------------------------------


@on_shared
async def test_variables_are_buffers(device: Device) -> None:
    module = await compiled(device)
    kernel = await module.kernel("look_up")
    table, counter = await module.variable("table"), await module.variable("counter")
    assert (table.shape, table.dtype) == ((4,), np.float32)
    assert (counter.shape, counter.dtype) == ((), np.int32)
    assert (await device.get(table)).tolist() == TABLE.tolist()
    out, at = await device.zeros(3, np.float32), await device.put(np.array([3, 0, 1], np.int32))
    await kernel.launch(1, 1, out, at, 3)
    assert (await device.get(out)).tolist() == [4, 1, 2]
    await device.copy(await device.put(TABLE * 10), table)
    await kernel.launch(1, 1, out, at, 3)
    assert (await device.get(out)).tolist() == [40, 10, 20]
    assert await device.get(counter) == 6
    again = await module.variable("table")
    assert (await device.get(again)).tolist() == (TABLE * 10).tolist()
    async with device.batch() as batch:  # in the order of the program, with nothing awaited
        for _ in range(5):
            batch.launch(kernel, 1, 1, out, at, 3)
        seen = batch.copy(counter)
        batch.launch(kernel, 1, 1, out, at, 3)
    assert await device.get(seen) == 21
    assert await device.get(counter) == 24


@on_shared
async def test_variables_cannot_be_sealed(device: Device) -> None:
    """Sealing moves the content, so kernels would not find it."""
    module = await compiled(device)
    counter = await module.variable("counter")
    with pytest.raises(Unsupported, match="ref is a variable of a module"):
        await device.seal(counter)
    await device.fill(counter, 7)
    assert (await device.get(await module.variable("counter"))).tolist() == 7
    assert (await device.seal(await device.copy(counter))).sealed


def count(x: Any) -> None:
    """Write the number of the host's modules to x."""
    from atomr_accel.libraries.nvrtc.host._modules import LaneModules

    x[0] = max(len(each._own) for each in gc.get_objects() if type(each) is LaneModules)


@cpu_only
async def test_modules_are_unloaded_once_nobody_has_their_variables() -> None:
    source = 'extern "C" __global__ void {}(int* x) {{}}'
    async with opened() as device:
        x = await device.zeros(1, np.int32)
        counting = await device.nvrtc.compile(source.format("count"), "count", cpu=count)
        for _ in range(10):
            module = await compiled(device)
            kept = [module, await module.kernel("look_up"), await module.variable("counter")]
            del module, kept
        await counting.launch(1, 1, x)
        assert 1 <= await device.get(x) <= 3


@on_shared
async def test_recordings_see_the_same_variables(device: Device) -> None:
    module = await compiled(device)
    kernel = await module.kernel("look_up")
    out, at = await device.zeros(1, np.float32), await device.put(np.array([2], np.int32))
    async with device.record() as recording:
        recording.launch(kernel, 1, 1, out, at, 1)
    for _ in range(3):
        await recording.replay()
    await kernel.launch(1, 1, out, at, 1)
    counter = await module.variable("counter")
    assert await device.get(counter) == 4
    await recording.replay()
    assert await device.get(counter) == 5


async def test_after_a_rebuild_a_module_is_as_it_was_at_first() -> None:
    async with opened() as device:
        module = await compiled(device)
        kernel = await module.kernel("look_up")
        counter, at = await module.variable("counter"), np.array([1], np.int32)
        await kernel.launch(1, 1, await device.zeros(1, "f4"), await device.put(at), 1)
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.get(counter)
        out = await device.zeros(1, np.float32)
        await kernel.launch(1, 1, out, await device.put(at), 1)
        assert (await device.get(out)).tolist() == [2]
        assert await device.get(await module.variable("counter")) == 1


@pytest.mark.parametrize(
    ("variables", "error", "said"),
    [
        ({"table": [1, 2]}, TypeError, "must be a NumPy array"),
        (["table"], TypeError, "variables must map"),
        ({"table": np.zeros(0, "f4")}, ValueError, "no elements"),
        ({"table": np.zeros(5 << 20, "f4")}, ValueError, "16777216 are the most"),
        ({"table": np.array(["a"])}, TypeError, "dtype"),
    ],
)
async def test_missing_variable_is_refused(
    device: Device, variables: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await device.nvrtc.compile_module(SOURCE, ["look_up"], cpu=look_up, variables=variables)


# --- arguments ------------------------------------------------------------------------------


async def _waits(x: Any) -> None:
    x[0] = 1


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"source": 3}, TypeError, "source must be str"),
        ({"names": "evaluate"}, TypeError, "names must be a sequence"),
        ({"names": [3]}, TypeError, "names must be a sequence"),
        ({"names": []}, ValueError, "names must not be empty"),
        ({"names": ["evaluate", "evaluate"]}, ValueError, "must not repeat"),
        ({"headers": ["a.h"]}, TypeError, "headers must map"),
        ({"headers": {"a.h": b""}}, TypeError, "headers must map"),
        ({"parts": "x"}, TypeError, "parts must be"),
        ({"parts": [3]}, TypeError, "a part must be"),
        ({"cpu": {"other": print}}, ValueError, "cpu names kernels that there are not"),
        ({"cpu": {"evaluate": 3}}, TypeError, "cpu must be callable"),
        ({"options": ["-dlto"]}, Unsupported, "parts="),
        ({"options": CompileOptions(maxrregcount="8")}, TypeError, "maxrregcount must be int"),  # type: ignore[arg-type]
        ({"source": "__global__ void k() {}\ud800", "names": ["k"]}, ValueError, "surrogate"),
        ({"structs": {"\ud800": np.dtype([("a", "f4")])}}, ValueError, "surrogate"),
        ({"source": "__global__ void k() {}\0", "names": ["k"]}, ValueError, "has a NUL at 22"),
        ({"options": ["-DA\0"]}, ValueError, "has a NUL"),
        ({"headers": {"a.h": "\0"}}, ValueError, "has a NUL"),
        ({"parts": ["int a;\0"]}, ValueError, "has a NUL"),
        ({"options": CompileOptions(split_compile=2**31)}, ValueError, "takes a number from 0 to"),
        ({"options": CompileOptions(maxrregcount=-1)}, ValueError, "takes a number from 0 to"),
        ({"options": CompileOptions(diag_error=[2**40])}, ValueError, "takes a number from 0 to"),
        ({"options": ["-jump-table-density", "99999999999"]}, ValueError, "takes a number from 0"),
        ({"cpu": _waits}, TypeError, "cpu is '_waits', which would not run"),
        ({"cpu": lambda x: (yield x)}, TypeError, "would not run when it is called"),
    ],
)
@on_shared
async def test_compile_errors_are_found_before_a_launch(
    device: Device, arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    given = {"source": SOURCE, "names": ["evaluate"], "cpu": evaluate, **arguments}
    with pytest.raises(error, match=said):
        await device.nvrtc.compile_module(given.pop("source"), given.pop("names"), **given)


@on_shared
async def test_kernels_that_are_no_templates_need_no_names(device: Device) -> None:
    source = 'extern "C" __global__ void a(int* x) { *x = 1; }\n__global__ void b(int* x) {}'
    module = await device.nvrtc.compile_module(source, cpu={"a": lambda x: x.fill(1), "b": print})
    assert module.names == ("a", "b")
    x = await device.zeros(1, np.int32)
    await (await module.kernel("a")).launch(1, 1, x)
    assert (await device.get(x)).tolist() == [1]
    said = r"the source has no kernels: name|names must be given if NVRTC"
    with pytest.raises((CompileError, LibraryMissing, ValueError), match=said):
        await device.nvrtc.compile_module("template <class T> __global__ void t(T x) {}")


# --- images ---------------------------------------------------------------------------------

PTX: Final = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry set(
    .param .u64 set_param_0,
    .param .f32 set_param_1
)
{
    .reg .f32 %f<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [set_param_0];
    ld.param.f32 %f1, [set_param_1];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.f32 [%rd2], %f1;
    ret;
}
"""


@pytest.mark.parametrize("image", [PTX, PTX.encode()], ids=["str", "bytes"])
@needs_nvrtc
@on_shared
async def test_an_image_is_loaded(device: Device, image: Any) -> None:
    module = await device.nvrtc.load_module(
        image,
        {"store": "set"},
        cpu=lambda out, value: out.fill(value),
        declarations="__global__ void store(float* out, float value);",
    )
    out = await device.zeros(1, np.float32)
    kernel = await module.kernel("store")
    await kernel.launch(1, 1, out, 2.5)
    assert (await device.get(out)).tolist() == [2.5]
    with pytest.raises(TypeError, match="takes 2 arguments"):
        await kernel.launch(1, 1, out)


@pytest.mark.parametrize(
    ("image", "names", "error", "said"),
    [
        (3, ["set"], TypeError, "image must be bytes"),
        (b"what", ["set"], ValueError, "no cubin, fatbin, PTX or LTO-IR; it begins with b'what'"),
        (PTX, ["other"], ValueError, "the PTX has no kernel named 'other'"),
        (b"\x7fELF" + bytes(12) + b"\1\0", ["set"], ValueError, "relocatable: give it as"),
        (b"\x7fELF" + bytes(12) + b"\2\0", ["set"], ValueError, "the cubin has no kernel"),
        (PTX, [], ValueError, "names must not be empty"),
        (PTX, [3], TypeError, "names must be"),
        (PTX, None, TypeError, "names must be"),
        (PTX, "set", TypeError, "names must be"),
    ],
)
@on_shared
async def test_invalid_image_is_refused(
    device: Device, image: Any, names: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await device.nvrtc.load_module(image, names, cpu=print)


# --- batches, requests, types ---------------------------------------------------------------


@on_shared
async def test_modules_are_used_in_batches_and_by_actors(device: Device) -> None:
    module = await compiled(device)
    out = await device.zeros(3, np.int32)
    async with device.batch() as batch:
        kernel = batch.using(module).kernel("deep::fill<int>")
        kernel.launch(1, 32, out, 5, 3)
        with pytest.raises(Unsupported, match="waits for the device's answer"):
            batch.using(module).variable("table")
    assert (await device.get(out)).tolist() == [5, 5, 5]
    request = device.requests.using(module).variable("counter")
    assert await device.get(await device.nvrtc.ref.ask(request)) == 0


@cpu_only
@on_shared
async def test_a_kernel_of_a_module_without_a_twin_is_unsupported(device: Device) -> None:
    module = await device.nvrtc.compile_module(SOURCE, ["evaluate", "look_up"], cpu={})
    kernel = await module.kernel("evaluate")
    assert kernel.twin is None
    with pytest.raises(
        Unsupported, match="kernel 'evaluate' must have a Python function on the CPU backend;"
    ):
        await kernel.launch(1, 1, await device.zeros(1), np.zeros((), LINE), 1)
    for ask in (kernel.attributes(), kernel.occupancy(32), kernel.suggest_block()):
        with pytest.raises(Unsupported, match="on the CPU backend"):
            await ask


# --- what NVRTC makes of them, without a GPU -------------------------------------------------


def find(source: str, *names: str, **more: Any) -> Any:
    return _program.find_module(Compile(source, names, **more), (9, 0))


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_the_compiler_tells_of_parameters_and_bounds() -> None:
    source = SOURCE + "__global__ void __cluster_dims__(2, 1, 1) pair(bool b, short s) {}"
    message = Compile(source, (*NAMES, "pair"), variables=("table", "counter"))
    found = _program.find_module(message, (9, 0))
    assert found.entries[1].type == "_Z15atomr_signatureIFvPiiiEE"
    fills, evaluates, looks, pairs = (replace(each, type="") for each in found.entries[1:])
    assert fills == KernelEntry("_ZN4deep4fillIiEEvPT_S1_i", ((8, 8), (4, 4), (4, 4)))
    assert evaluates == KernelEntry("evaluate", ((8, 8), (16, 8), (4, 4)), most_threads=128)
    assert looks.parameters == ((8, 8), (8, 8), (4, 4))
    assert (pairs.parameters, pairs.cluster) == (((1, 1), (2, 2)), (2, 1, 1))
    assert found.variables == ("table", "counter")
    newer = _program.find_module(message, (99, 0))  # as PTX
    assert newer.image.startswith(b"//")
    assert newer.entries == found.entries


OF_LINE: Final[dict[str, Any]] = {"slope": "f4", "steps": "i4", "offset": "f8"}
"""The struct of the source, field by field."""


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("structs", "variables", "said"),
    [
        ({"Line": np.dtype([("slope", "f4"), ("offset", "f8")])}, None, "Line takes 12 bytes"),
        ({"Line": np.dtype([("steps", "f8"), ("offset", "f8")])}, None, "Line::steps is at byte 0"),
        ({"Line": OF_LINE | {"slope": "i4"}}, None, "Line::slope is 4 bytes of int32"),
        ({"Line": OF_LINE | {"slope": ("f2", 2)}}, None, "Line::slope is 4 bytes of float16"),
        ({"Line": OF_LINE | {"slope": "S4"}}, None, None),
        ({"Line": OF_LINE | {"steps": "f4"}}, None, "Line::steps is 4 bytes of float32"),
        ({"Line": OF_LINE | {"steps": "i2"}}, None, "Line::steps is 2 bytes of int16"),
        ({"Line": OF_LINE | {"steps": ("i2", 2)}}, None, "Line::steps is 4 bytes of int16"),
        ({"Line": OF_LINE | {"steps": "u4"}}, None, None),
        (None, {"table": np.zeros(5, "f4")}, "table is 20 bytes of float32"),
        (None, {"table": np.zeros(4, "i4")}, "table is 16 bytes of int32"),
        (None, {"table": np.zeros((2, 2), "f4")}, None),
        (None, {"nobody": np.zeros(5, "f4")}, "nobody"),
    ],
)
async def test_struct_of_another_layout_does_not_compile(
    structs: Any, variables: Any, said: str | None
) -> None:
    if structs is not None and isinstance(structs["Line"], dict):
        structs = {"Line": np.dtype([*structs["Line"].items()], align=True)}
    refused = contextlib.nullcontext() if said is None else pytest.raises(CompileError, match=said)
    async with opened(isolation="thread") as device:
        with refused:
            await device.nvrtc.compile_module(
                SOURCE, ["evaluate"], cpu=evaluate, structs=structs, variables=variables
            )


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
async def test_macros_of_a_source_are_no_matter_to_what_is_asserted() -> None:
    source = """
        #define T float
        #define n 4
        #define kind 1
        #define size 2
        struct S { T a; };
        __device__ T v[n];
        extern "C" __global__ void k(S s) { v[0] = s.a; }
    """
    async with opened(isolation="thread") as device:
        await device.nvrtc.compile_module(
            source,
            cpu=print,
            structs={"S": np.dtype([("a", "f4")])},
            variables={"v": np.zeros(4, "f4")},
        )


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.slow
def test_parts_are_linked() -> None:
    source = """
        extern __device__ float half_of(float);
        extern "C" __global__ void k(float* x) { *x = half_of(*x); }
    """
    other = "__device__ float half_of(float x) { return x / 2; }"
    found = find(source, "k", parts=(LinkInput(source=other),))
    assert found.image.startswith(b"\x7fELF")
    assert not found.kept
    assert find(source, "k", parts=(LinkInput(source=other),)).kept
    for wrong in ("", "__device__ float twice_of(float x) { return x * 2; }"):
        with pytest.raises(CompileError, match=r"do not link:\n[^$]*half_of"):
            find(source, "k", parts=(LinkInput(source=wrong or "\n"),))
    with pytest.raises(CompileError, match=r"part part0\.cu does not compile"):
        find(source, "k", parts=(LinkInput(source="nonsense"),))
    with pytest.raises(Unsupported, match=r"release of NVRTC that knows the device \(compute_"):
        _program.compile_module(Compile(source, ("k",), parts=(LinkInput(source=other),)), (99, 0))
    with _compiler.NvrtcProgram(other + PLAIN, "a.cu") as compiling:
        compiling.compile("it", ("--gpu-architecture=sm_90", *_compiler.LINKABLE))
        image = compiling.output("LTOIR")
    assert kind_of(image) == "LTOIR"
    assert find(source, "k", parts=(LinkInput(image=image),)).image.startswith(b"\x7fELF")
    linked = _program.link_image(LinkImage(image, other, ("half_of",)), (9, 0))
    assert linked.image.startswith(b"\x7fELF")
    assert linked.entries[0].type == "_Z15atomr_signatureIFffEE"


PLAIN: Final = 'extern "C" __global__ void plain(float* x) { *x = 1; }'


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
@pytest.mark.slow
def test_options_have_names_and_types(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "std": "c++20",
        "architecture": "sm_90a",
        "define": {"A": 1, "B": None},
        "undefine": ["C"],
        "include_path": [tmp_path],
        "pre_include": ["cuda_fp16.h"],
        "maxrregcount": 32,
        "dopt": "on",
        "split_compile": 2,
        "jump_table_density": 50,
        "ptxas_options": ["-v"],
        "diag_error": [177],
        "diag_suppress": [177],
        "diag_warn": [177],
        "pch_dir": str(tmp_path),
        "create_pch": str(tmp_path / "a.pch"),
        "use_pch": str(tmp_path / "a.pch"),
    }
    for name in CompileOptions.__dataclass_fields__:
        for value in [given[name]] if name in given else [True, False]:
            named: dict[str, Any] = {name: value}
            options = CompileOptions(**named)
            message = Compile(PLAIN, ("plain",), options.flags())
            made = _program.compile_module(message, (9, 0))
            assert made.image.startswith(b"\x7fELF"), name
            if name == "ptxas_options":
                assert "Used" in made.log
    flags = CompileOptions(define={"A": 1, "B": None}, ftz=False, use_fast_math=False).flags()
    assert flags == ("--define-macro=A=1", "--define-macro=B", "--ftz=false")


@pytest.mark.parametrize(
    "wrong",
    [{"define": ["A"]}, {"include_path": "here"}, {"ftz": 1.5}, {"std": 17}, {"pre_include": 3}],
    ids=str,
)
def test_options_of_other_types_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"must (be|map) .*, not "):
        CompileOptions(**wrong).flags()
