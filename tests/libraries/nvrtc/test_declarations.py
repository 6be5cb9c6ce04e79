"""Choice among several declarations of a kernel's name, and the fallback for ambiguous ones."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import GpuRefSealed
from atomr_accel.libraries.nvrtc._declarations import Declarations
from atomr_accel.libraries.nvrtc.signature import read_signature

from ...harness import cpu_only, on_shared

if TYPE_CHECKING:
    from atomr_accel import Device

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

TWO = """
    namespace a { __global__ void k(const float* x) {} }
    namespace b { __global__ void k(float* x) { x[0] = 1; } }
    __constant__ int w;
    namespace c { __device__ int w; __constant__ int v; }
"""
OVERLOADED = """
    template <class T> __global__ void k(const T* x) {}
    template <class T, int N> __global__ void k(T* x) {}
    template <class T, int N = 3, class... U> __global__ void many(T* x, U... u) {}
"""
CHOSEN = """
    #ifdef DOUBLE
    extern "C" __global__ void k(double* x, int n)
    #else
    extern "C" __global__ void k(const float* x, int n)
    #endif
    { }
    #if MORE
    __global__ void l(float* x, int n) {
    #else
    __global__ void l(float* x) {
    #endif
    }
    __global__ void m(float* x
    #ifdef MORE
        , int n
    #endif
    ) {}
    template <class T>
    #ifdef BOUNDED
    __launch_bounds__(128)
    #endif
    __global__ void n(T* x) {}
    __global__ void last(float* x) {}
"""
LEFT_OUT = """
    #if 0
    __global__ void no(int* x) {}
    #if SOMETHING
    __global__ void neither(int* x) {}
    #else
    __global__ void nor(int* x) {}
    #endif
    #elif 1
    __global__ void yes(int* x) {}
    #else
    __global__ void not_this(int* x) {}
    #endif
    #if 1
    __global__ void yes_too(int* x) {}
    #else
    __global__ void yes(float* x) {}
    #endif
    #define MADE(n) __global__ void n(int* x) {}
    #define LONG(n) \\
        __global__ void n(int* x) {}
    __global__ void elsewhere(int* x);
    MADE(made)
"""


def _said(source: str, name: str, sizes: Any = None) -> list[tuple[str, bool]] | None:
    found = read_signature(Declarations(source), name, None, sizes)
    return None if found is None else [(each.text, each.written) for each in found]


def test_a_name_is_that_of_its_namespace() -> None:
    assert _said(TWO, "a::k") == [("const float* x", False)]
    assert _said(TWO, "b::k") == _said(TWO, "::b :: k") == [("float* x", True)]
    either = [("const float* x or float* x", True)]  # such as by another name of a namespace
    assert _said(TWO, "k") == _said(TWO, "alias::k") == either
    declarations = Declarations(TWO)
    assert declarations.kernels() == ["a::k", "b::k"]
    assert [declarations.is_constant(each) for each in ("w", "c::w", "c::v", "v")] == [
        *(True, False, True, False)
    ]


def test_a_variable_that_is_constant_only_under_a_condition_is_not() -> None:
    source = "#ifdef A\n__constant__ int w;\n#else\n__device__ int w;\n#endif"
    assert not Declarations(source).is_constant("w")


def test_an_overload_is_told_by_its_templates_arguments() -> None:
    assert _said(OVERLOADED, "k<float>") == [("const T* x", False)]
    assert _said(OVERLOADED, "k<float, 3>") == [("T* x", True)]
    assert _said(OVERLOADED + "__global__ void k(int* y) {}", "k") == [("int* y", True)]
    many = read_signature(Declarations(OVERLOADED), "many<float, 3, int>")
    assert many is not None
    assert many[0].dtype == np.float32


def test_what_conditions_choose_is_known_as_far_as_all_say_the_same() -> None:
    either = [("double* x or const float* x", True), ("int n", False)]
    assert _said(CHOSEN, "k") == either
    assert _said(CHOSEN, "l") is _said(CHOSEN, "m") is None
    assert _said(CHOSEN, "l", ((8, 8), (4, 4))) == [("float* x", True), ("int n", False)]
    assert _said(CHOSEN, "l", ((8, 8),)) == [("float* x", True)]
    found = read_signature(Declarations(CHOSEN), "n<double>")
    assert found is not None
    assert found[0].dtype == np.float64
    assert Declarations(CHOSEN).kernels() == ["k", "l", "m", "last"]


def test_what_is_surely_left_out_is_not_there() -> None:
    declarations = Declarations(LEFT_OUT)
    assert declarations.kernels() == ["yes", "yes_too"]
    assert declarations.functions("elsewhere")
    for name in ("no", "neither", "nor", "not_this", "n", "made"):
        assert not declarations.functions(name)
    assert _said(LEFT_OUT, "yes") == [("int* x", True)]


OVERTAKEN = {
    "using a function": """
        namespace detail { template <class T, int N> __global__ void k(T* x) {} }
        namespace api { using detail::k; template <class T> __global__ void k(const T* x) {} }
        // api::k<float, 4>
    """,
    "using a namespace": """
        namespace detail { template <class T> __global__ void k(T* x) {} }
        using namespace detail; __global__ void k(const float* x) {}  // k<float>
    """,
    "an inline namespace": """
        namespace a { inline namespace v1 { template <class T> __global__ void k(T* x) {} }
                      __global__ void k(const float* x) {} }  // a::k<float>
    """,
    "a comparison": """
        template <class T, bool B = (sizeof(T) > 4), int M = 2> __global__ void k(T* x) {}
        template <class T, class U, int M> __global__ void k(const T* x) {}  // k<float, true, 3>
    """,
    "a brace": """
        template <class T, int B = int{1}, int M = 2> __global__ void k(T* x) {}
        template <class T, class U> __global__ void k(const T* x) {}  // k<float, 1, 3>
    """,
    "requires": """
        template <class T> requires requires(T t) { t + t; } __global__ void k(T* x) {}
        template <class T, int N> __global__ void k(const T* x) {}  // k<float>
    """,
    "a comparison without parentheses": """
        template <class T, int N, bool B = N < 3> __global__ void k(T* x) {}
        template <class T> __global__ void k(const T* x, int n) {}  // k<float, 2>
    """,
    "parentheses in branches": """
        __device__ void f(int x) {
        #if A
          g(
        #else
          h(
        #endif
          x); }
        #if B
        #define OPEN (
        #endif
        __device__ int q OPEN int x) { return x; }
        __global__ void k(float* x, float a = float{1}, float b = float{2}) {}  // k
    """,
    "a name that is a macro": """
        #ifdef OLD
        namespace a { __global__ void k(const float* x) {} }
        #else
        namespace NS { __global__ void k(float* x) {} }
        #endif  // a::k
    """,
    "a brace in a branch": """
        namespace n { __device__ void f(float* b, int n) {
        #ifndef Z
          while (n) {
        #else
          if (n)
        #endif
            b[0] = 2;
        #ifndef Z
          }
        #endif
        }
        __global__ void k(float* b) {} }  // n::k
    """,
    "a namespace that is surely there": """
        #if 1
        namespace a {
        #else
        namespace b {
        #endif
        __global__ void k(float* b) {} }  // a::k
    """,
    "how kernels begin": """
        #define KERNEL extern "C" __global__ void
        KERNEL k(float* x) {}
        KERNEL other(const float* x) {}  // k
    """,
    "attributes": """
        #define BOUNDS(n) __launch_bounds__(n)
        [[nodiscard]] __global__ __attribute__((used)) [[deprecated("k(")]] BOUNDS(3) void k(int* x)
        {}  // k
    """,
}


@pytest.mark.parametrize("case", OVERTAKEN)
def test_what_is_written_is_never_taken_for_read(case: str) -> None:
    source = OVERTAKEN[case]
    name = source.rpartition("//")[2].strip()
    found = read_signature(Declarations(source), name)
    assert found is not None
    assert found[0].written
    if "<" not in name:
        assert name in Declarations(source).kernels()


def test_parameters_whose_number_is_uncertain_are_unknown() -> None:
    source = """
        #ifdef OLD
        __global__ void k(const float* x, float4 m, int n) {}
        #else
        __global__ void k({}) {{}}
        #endif
    """
    sizes = ((8, 8), (16, 16), (4, 4))
    for several in ("ARGUMENTS, int n", "ARGUMENTS(float, x), int n", "float* x, A... n"):
        assert _said(source.replace("{}) {{}", several + ") {"), "k", sizes) is None
    braces = source.replace("{}) {{}", "float* x, float4 m = {0, 0}, int n = 1 << 3) {")
    found = _said(braces, "k", sizes)
    assert found is not None
    assert found[0][1]


@pytest.mark.parametrize(
    ("parameter", "pointer", "written"),
    [
        *(("V<const int>* x", True, True), ("const V<int>* x", True, False)),
        *(("V<W<const int>, const T> * x", True, True), ("V<int*> x", False, True)),
        *(("float* const x", True, True), ("const float* const x", True, False)),
        *(("const float** x", True, True), ("float* const* x", True, False)),
        *(("const float x[]", True, False), ("const float* x[4]", True, True)),
        *(("float const* __restrict__ x", True, False), ("pointer x", False, True)),
        *(("const S x", False, False), ("struct T x", False, False), ("float4 x", False, False)),
        *(("const float (*x)[2]", True, False), ("float (*x)[2]", True, True)),
        *(("typename Tr<S>::ptr x", False, True), ("Pointer<float4> x", False, True)),
        *(("dim3 x", False, False), ("cudaTextureObject_t x", False, False)),
    ],
)
def test_what_a_parameter_may_be_written_through(
    parameter: str, pointer: bool, written: bool
) -> None:
    source = f"struct S {{ int a; }}; __global__ void k({parameter}) {{}}"
    found = read_signature(Declarations(source), "k")
    assert found is not None
    assert (found[0].pointer, found[0].written) == (pointer, written)


WRITES = "__global__ void k(float* x) {}\n"
NAMES = st.sampled_from(["a", "b", "a::b", "k", "n"])


@given(st.lists(st.tuples(NAMES, st.booleans(), st.sampled_from(["", "0", "1", "X"])), max_size=6))
def test_every_kernel_is_found_where_it_is(kernels: list[tuple[str, bool, str]]) -> None:
    """However many namespaces and conditions there are: each is known by its own declaration."""
    source = ""
    expected: dict[str, list[bool]] = {}
    for at, (space, constant, condition) in enumerate(kernels):
        const = "const " if constant else ""
        kernel = f"namespace {space} {{ __global__ void k{at % 3}({const}float* x) {{}} }}"
        source += f"#if {condition}\n{kernel}\n#endif\n" if condition else f"{kernel}\n"
        if condition != "0":
            expected.setdefault(f"{space}::k{at % 3}", []).append(constant)
    declarations = Declarations(source)
    assert declarations.kernels() == [*expected]
    for name, ways in expected.items():
        found = read_signature(declarations, name)
        assert found is not None
        assert found[0].written or all(ways)
        if not any(condition == "X" for _, _, condition in kernels):
            assert found[0].written is not all(ways)


@pytest.mark.parametrize(
    "source",
    [
        "\n".join(f'extern "C" __global__ void k{at}(int* x) {{}}' for at in range(3000)),
        "\\\n" * 100_000,
        'R"(' * 100_000,
        "int a;" + "/" * 100_000,
        "#if X\n" * 1000 + "__global__ void k(int* x) {}" + "\n#endif" * 1000,
        "__global__ " * 3000 + "k" + "(" * 3000,
    ],
    ids=["kernels", "joined lines", "raw", "slashes", "conditions", "parentheses"],
)
def test_long_sources_take_no_longer_than_they_are(source: str) -> None:
    # What took the square of this would hang.
    declarations = Declarations(source)
    for name in declarations.kernels():
        read_signature(declarations, name)


# --- on a device ----------------------------------------------------------------------------


def late(x: Any) -> None:
    time.sleep(0.05)
    x[0] = 1


@cpu_only
@pytest.mark.parametrize(
    ("source", "name"),
    [
        (TWO, "b::k"),
        (
            f"#if R\n__global__ void k(const float* x) {{}}\n#else\n{WRITES}#endif",
            "k",
        ),
        ("template <class T> struct V {}; __global__ void k(V<const int>* x) {}", "k"),
        ("typedef float* pointer; __global__ void k(pointer x) { x[0] = 1; }", "k"),
    ],
    ids=["namespaces", "conditions", "templates", "typedef"],
)
@on_shared
async def test_what_a_kernel_may_write_is_ordered_and_not_sealed(
    device: Device, source: str, name: str
) -> None:
    module = await device.nvrtc.compile_module(source, [name], cpu=late)
    kernel = await module.kernel(name)
    x = await device.zeros(2, np.float32)
    async with device.batch() as batch:
        batch.launch(kernel, 1, 1, x)
        y = batch.copy(x)
    assert (await device.get(y)).tolist() == [1, 0]
    sealed = await device.put(np.zeros(2, np.float32), sealed=True)
    with pytest.raises(GpuRefSealed):
        await kernel.launch(1, 1, sealed)
