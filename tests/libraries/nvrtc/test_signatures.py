"""Parameters of kernels, as the compiler tells them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import cloudpickle
import numpy as np
import pytest

from atomr_accel import CompileError, GpuRefSealed, LibraryMissing
from atomr_accel.libraries.nvrtc.host import _cpu, _program
from atomr_accel.libraries.nvrtc.signature import Parameter, read_signature
from atomr_accel.libraries.nvrtc.wire.messages import Compile, LinkImage

from ...harness import cpu_only, opened

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

SOURCE: Final = """
    #define KERNEL(name) extern "C" __global__ void name
    namespace deep {
        typedef const float* In;
        struct S { int a; };
        enum class E { one };
        template <class T> using Out = T*;
        template <class T, class... U> __global__ void scale(Out<T> x, const T* y, U... u) {}
        __global__ void plain(In x) {}
    }
    #ifdef WIDE
    KERNEL(k)(double* x, deep::In y, deep::S s, unsigned long n, deep::E e) {}
    #else
    KERNEL(k)(float* __restrict__ x, deep::In y, deep::S s, unsigned long n, deep::E e) {}
    #endif
    __global__ void over(float* x) {}
    __global__ void over(const double* x) {}
    __constant__ float table[4];
    __device__ int counter;
    __global__ void mapped(const __grid_constant__ deep::S s, float (*x)[2], void* y, bool b) {}
"""


def compiled(*names: str, **more: Any) -> Any:
    return _program.compile_module(Compile(SOURCE, names, **more), (9, 0))


def parameters(*names: str, **more: Any) -> list[Parameter]:
    made = compiled(*names, **more)
    found = read_signature(made.entries[0].type)
    assert found is not None
    return [*found]


def said(found: list[Parameter]) -> list[tuple[str, bool]]:
    return [(each.text, each.written) for each in found]


pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_signatures_resolve_macros_typedefs_and_conditions() -> None:
    rest = [("const float*", False), ("deep::S", True), ("unsigned long", False), ("deep::E", True)]
    assert said(parameters("k")) == [("float*", True), *rest]
    assert said(parameters("k", options=("-DWIDE",))) == [("double*", True), *rest]
    assert said(parameters("mapped"))[1:] == [
        ("float (*)[2]", True),
        ("void*", True),
        ("bool", False),
    ]


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_signatures_of_templates_have_their_arguments() -> None:
    found = parameters("deep::scale<double, int, deep::S>")
    assert [each.text for each in found] == ["double*", "const double*", "int", "deep::S"]
    assert said(parameters("deep::scale<const float>"))[0] == ("const float*", False)


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_an_overloaded_kernel_is_named_by_a_cast() -> None:
    assert said(parameters("(void (*)(float*))over")) == [("float*", True)]
    assert said(parameters("(void (*)(const double*))over")) == [("const double*", False)]
    with pytest.raises(CompileError, match="name one function of several by a cast"):
        compiled("over")


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_structs_are_found_by_any_of_their_names() -> None:
    source = SOURCE + "using Alias = deep::S;"
    made = _program.compile_module(Compile(source, ("k",), structs=("Alias",)), (9, 0))
    fields = np.dtype([("a", "i4")])
    found = read_signature(made.entries[0].type, {"Alias": fields}, made.structs)
    assert found is not None
    assert found[2].struct == fields
    assert made.constants == ("table",)


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_all_kernels_but_templates_are_found() -> None:
    source = SOURCE.replace("__global__ void over(const double* x) {}", "")
    made = _program.find_module(Compile(source, ()), (9, 0))
    assert {*made.names} == {"k", "over", "mapped", "deep::plain"}
    assert len(made.entries) == 4
    again = _program.find_module(Compile(source, ()), (9, 0))
    assert again.kept
    assert again.entries == made.entries


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_sources_before_cpp14_have_no_signatures() -> None:
    made = _program.compile_module(
        Compile("__global__ void k(float* x) {}", ("k",), ("--std=c++11",)), (9, 0)
    )
    assert made.entries[0].type == ""
    assert made.entries[0].parameters == ((8, 8),)


@pytest.mark.headers
@pytest.mark.usefixtures("nvrtc")
def test_declarations_of_an_image_are_read() -> None:
    declared = "struct S { int a; }; __global__ void store(float*, S);"
    declared += "__global__ void load(const float*);"
    made = _program.link_image(LinkImage(b"", declared, ("store", "load"), ("S",)), (9, 0))
    found = read_signature(made.entries[0].type, {"S": np.dtype([("a", "i4")])}, made.structs)
    assert found is not None
    assert found[1].struct is not None
    assert made.entries[1].type == "_Z15atomr_signatureIFvPKfEE"
    with pytest.raises(CompileError, match=r"declarations= does not compile"):
        _program.link_image(LinkImage(b"", declared, ("other",)), (9, 0))


# --- without a compiler ---------------------------------------------------------------------


def scale(grid: Any, block: Any, x: Any, y: Any, line: Any, a: Any = 1) -> None:
    x[:] = y * a + line["offset"]


@cpu_only
async def test_kernels_without_a_compiler_read_sealed_buffers_and_write_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> None:
        raise LibraryMissing("no NVRTC", library="nvrtc")

    monkeypatch.setattr(_cpu, "find_module", missing)
    monkeypatch.setattr(_cpu, "link_image", missing)
    line = np.dtype([("slope", "f4"), ("offset", "f4")])
    async with opened(isolation="thread") as device:
        with pytest.raises(LibraryMissing, match="names must be given"):
            await device.nvrtc.compile_module("nonsense", cpu=scale)
        module = await device.nvrtc.compile_module(
            "nonsense", cpu={"scale": scale}, structs={"Line": line}
        )
        kernel = await module.kernel("scale")
        assert kernel.parameters is None
        x = await device.zeros(3)
        y = await device.put(np.arange(3.0), sealed=True)
        await kernel.launch(1, 1, x, y, (0.0, 1.0), 2)
        assert (await device.get(x)).tolist() == [1, 3, 5]
        await kernel.launch(1, 1, x, y, (0.0, 0.5))
        for count in (2, 5):
            with pytest.raises(TypeError, match="as many arguments as its Python function takes"):
                await kernel.launch(1, 1, x, y, *[1] * (count - 2))
        image = await device.nvrtc.load_module(
            ".version 8.0\n.entry set(", ["set"], cpu=scale, declarations="void set(int);"
        )
        await (await image.kernel("set")).launch(1, 1, x, y, np.ones((), line), 3)
        plain = await device.nvrtc.load_module(".version 8.0\n.entry set(", ["set"], cpu=scale)
        with pytest.raises(GpuRefSealed):
            await (await plain.kernel("set")).launch(1, 1, x, y, np.ones((), line), 3)
