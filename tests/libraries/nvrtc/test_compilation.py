"""Kernels before a device sees them: their parameters, and their compilation."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import LibraryError, Unsupported
from atomr_accel.executors import compiler as _compiler
from atomr_accel.host.templates import Template
from atomr_accel.libraries.nvrtc._declarations import Declarations
from atomr_accel.libraries.nvrtc.signature import Parameter, read_signature
from atomr_accel.libraries.nvrtc.wire.messages import Array, Launch, Load, Scalar, Unload
from atomr_accel.wire import PLACE

from ...fakes.driver import FakeDriver, installed
from ...harness import on_shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from atomr_accel import Device

# --- signatures ----------------------------------------------------------------------------

KERNEL: Final = 'extern "C" __global__ void k(const float* x, double *y, int n) { y[n] = x[n]; }'
OTHER: Final = "__global__ void k(short z) {}"
"""A declaration in strings and comments, which must not be taken for the kernel."""


def _read(source: str, name: str) -> tuple[Parameter, ...] | None:
    return read_signature(Declarations(source), name)


PIECES: Final = (
    "",
    "int a;",
    "\n",
    "int d = 7 / 2;",
    "int m = 1'000'000;",
    "int x = 0xA'B; char y = '\"';",
    r"char z = '\'';",
    r"char w = '\\';",
    'const char* url = "http://host/path";',
    r'const char* quoted = "a \" // b";',
    r'const char* ended = "\\";',
    'const char* opened = "/*";',
    'const char* closed = "*/";',
    f'const char* said = "{OTHER}";',
    'const char* joined = "one \\\n// two";',
    'const char* slashed = "\\\\\n" ; // ";',
    f"// {OTHER}\n",
    f"// joined \\\n {OTHER}\n",
    '// one " quote\n',
    "// don't\n",
    f"/* {OTHER} */",
    f'/* " */ /* {OTHER} // */',
    f"/\\\n/ {OTHER}\n",
    f"/\\\n* {OTHER} *\\\n/",
    f'const char* raw = R"({OTHER} " // )";',
    f'const char* raw2 = R"x( )" {OTHER} )x";',
    f'const char* raw3 = u8R"(\\)" /* {OTHER} */;',
    f'const wchar_t* raw4 = LR"y(\n)\\\ny" {OTHER} )y";',
    '#define fooR ""\nconst char* r = fooR"(";\n',
    "#if 0\ndon't\n#endif\n",
)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from([" ", "\n", "\\\n"]))
def test_only_code_declares_a_kernel(before: list[str], between: str) -> None:
    plain = _read(KERNEL, "k")
    assert plain is not None
    source = between.join(before) + "\n" + KERNEL + f"// {OTHER}"
    assert _read(source, "k") == plain
    assert _read(between.join(before), "k") is None


@pytest.mark.headers
def test_the_compiler_reads_those_pieces_as_we_do() -> None:
    """Each by itself, where a kernel follows that only code can declare."""
    pytest.importorskip("cuda.bindings.nvrtc")
    for piece in PIECES:
        source = f"namespace piece {{\n{piece}\n}}\n{KERNEL}"
        *_, log = _compiler.compile_cubin(source, "k", ("-default-device",), (9, 0))
        assert "error" not in log


def test_a_line_may_be_cut_anywhere() -> None:
    plain = _read(KERNEL, "k")
    for at in range(len(KERNEL)):
        for end in ("\\\n", "\\\r\n"):
            assert _read(KERNEL[:at] + end + KERNEL[at:], "k") == plain


@pytest.mark.parametrize(
    ("template", "name", "parameters", "expected"),
    [
        ("template <typename T>", "k<float>", "T* x, T a", ["float32", "float32"]),
        ("template <class T>", "k< double >", "const T *x, T a", ["float64", "float64"]),
        ("template <int N, class T>", "k<3, unsigned int>", "T* x, T a", ["uint32", "uint32"]),
        ("template <class T, class U = int>", "k<half>", "T* x, U a", ["float16", "int32"]),
        ("template <class T, class U = int>", "k<half, long long>", "T* x, U a", [..., "int64"]),
        ("template <class T>", "space::k<const float>", "T* x, const T a", ["float32", "float32"]),
        ("template <class T>", "k<std::int8_t>", "T* x, T a", ["int8", "int8"]),
        ("template <class T>", "k<Own<int, int>>", "T* x, T a", [None, None]),
        ("template <class T>", "k<float*>", "float* x, const T a", ["float32", None]),
        ("template <class T>", "k", "T* x, T a", [None, None]),
        ("template <class... T>", "k<float>", "float* x, T... a", ["float32", None]),
        ("template <template <class> class V, class T>", "k<V, int>", "V<T>* x, T a", [None, ...]),
    ],
)
def test_parameters_of_templates(
    template: str, name: str, parameters: str, expected: list[Any]
) -> None:
    found = _read(f"{template} __global__ void k({parameters}) {{}}", name)
    assert found is not None
    for parameter, dtype in zip(found, expected, strict=True):
        if dtype is not ...:
            assert (parameter.dtype and parameter.dtype.name) == dtype
    constant = parameters.startswith("const") or "const" in name
    assert [p.pointer for p in found] == [True, False]
    assert found[0].written is not constant


# --- scalars -------------------------------------------------------------------------------


def scale(x: Any, a: Any, n: Any) -> None:
    x[: int(n)] *= a


SCALE: Final = """
    template <typename T> __global__ void scale(T* x, T a, int n) {
        for (int i = 0; i < n; i++) x[i] *= a;
    }
    typedef float real;
    extern "C" __global__ void scale_real(real* x, real a, int n) {
        for (int i = 0; i < n; i++) x[i] *= a;
    }
"""


@pytest.mark.parametrize("dtype", ["float", "double", "int"])
@on_shared
async def test_numbers_become_what_a_template_is_made_of(device: Device, dtype: str) -> None:
    name = {"float": np.float32, "double": np.float64, "int": np.int32}[dtype]
    kernel = await device.nvrtc.compile(SCALE, f"scale<{dtype}>", cpu=scale)
    x = await device.put(np.arange(4, dtype=name))
    await kernel.launch(1, 1, x, 3, 4)
    assert (await device.get(x)).tolist() == [0, 3, 6, 9]
    if dtype == "int":
        with pytest.raises(TypeError, match=r"argument 1 is 2\.5"):
            await kernel.launch(1, 1, x, 2.5, 4)
    else:
        await kernel.launch(1, 1, x, 0.5, 4)
        assert (await device.get(x)).tolist() == [0, 1.5, 3, 4.5]
    with pytest.raises(TypeError, match="dtype float16"):
        await kernel.launch(1, 1, await device.zeros(4, np.float16), 3, 4)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (0.5, r"float.* 'real a'; pass numpy\.float32\(...\) or numpy\.float64"),
        (2, r"int.* 'real a'; pass numpy\.int32\(...\) or numpy\.int64"),
        (True, r"bool.* 'real a'; pass numpy\.bool_"),
        (1j, r"complex.* 'real a'; pass numpy\.complex64"),
    ],
)
@on_shared
async def test_a_number_of_unknown_width_is_refused(
    device: Device, value: complex, advice: str
) -> None:
    kernel = await device.nvrtc.compile(SCALE, "scale_real", cpu=scale)
    x = await device.put(np.arange(4, dtype=np.float32))
    with pytest.raises(TypeError, match=advice):
        await kernel.launch(1, 1, x, value, 4)
    await kernel.launch(1, 1, x, np.float32(0.5), 4)
    assert (await device.get(x)).tolist() == [0, 0.5, 1, 1.5]


# --- compilation --------------------------------------------------------------------------

PLAIN: Final = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'
NOT_WHOLE: Final = (
    ("-dlto",),
    ("--dlink-time-opt",),
    ("-optix-ir",),
    ("--optix-ir",),
    ("-fdevice-syntax-only",),
    ("-dc",),
    ("--device-c",),
    ("-rdc=true",),
    (" --relocatable-device-code = true ",),
    ("-rdc", "true"),
    ("-DX=1", "--relocatable-device-code", "true"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path))
    return tmp_path / "cubins"


@pytest.mark.parametrize("options", [3, None, "-G", [3]], ids=repr)
async def test_options_are_several_texts(device: Device, options: Any) -> None:
    with pytest.raises(TypeError, match="options must be a sequence of str"):
        await device.nvrtc.compile(PLAIN, "k", cpu=print, options=options)


@pytest.mark.parametrize("options", NOT_WHOLE)
@on_shared
async def test_a_kernel_is_a_whole_program(device: Device, options: tuple[str, ...]) -> None:
    with pytest.raises(Unsupported, match="leave the option out"):
        await device.nvrtc.compile(PLAIN, "k", cpu=print, options=options)


@pytest.mark.headers
@pytest.mark.parametrize("options", [o for o in NOT_WHOLE if " " not in o[0]])
def test_what_cannot_be_launched_is_not_kept(folder: Path, options: tuple[str, ...]) -> None:
    """An image that cannot be loaded is kept for no caller and no option."""
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(Unsupported, match="makes nothing that a driver can load"):
        _compiler.find_cubin(PLAIN, "k", options, (9, 0))
    assert not [*folder.glob("*")]


@pytest.mark.headers
@pytest.mark.parametrize("kept", [b"", b"\x7fELF" + bytes(12) + b"\1\0"])
def test_what_was_kept_and_cannot_be_launched_is_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kept: bytes
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    with monkeypatch.context() as patch:
        patch.setattr(_compiler, "compile_cubin", lambda *_: (kept, "k", ""))
        _compiler.find_cubin(PLAIN, "k", (), (9, 0))
    found = _compiler.find_cubin(PLAIN, "k", (), (9, 0))
    assert not found.kept
    assert found.image.startswith(b"\x7fELF")
    assert _compiler.find_cubin(PLAIN, "k", (), (9, 0)).kept


@pytest.mark.headers
@pytest.mark.parametrize("name", ["k", "t<double>"])
def test_a_device_newer_than_the_compiler_gets_ptx(folder: Path, name: str) -> None:
    """Its driver compiles that for it."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    _, known = nvrtc.nvrtcGetSupportedArchs()
    source = PLAIN + "template <class T> __global__ void t(T* x) { x[0] = 1; }"
    for _ in range(2):
        image, lowered, log, kept = _compiler.find_cubin(source, name, (), (99, 0))
        assert f".target sm_{max(known)}\n".encode() in image
        assert f".entry {lowered}(".encode() in image
        assert image.endswith(b"\0")  # as the driver wants text
        assert not log
    assert kept
    # One between two that are known is executed as the older.
    missing = next(n for n in range(min(known), max(known)) if n not in known)
    image, *_ = _compiler.find_cubin(source, name, (), divmod(missing, 10))
    assert f".target sm_{max(n for n in known if n < missing)}\n".encode() in image


@pytest.mark.headers
def test_a_device_too_old_for_the_compiler_is_unsupported(folder: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(Unsupported, match=r"compute capability 3\.0, only from"):
        _compiler.find_cubin(PLAIN, "k", (), (3, 0))
    assert not folder.exists() or not [*folder.iterdir()]


@pytest.mark.headers
def test_an_include_may_be_cut_into_lines(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "more.h").write_text("\n")
    options = (f"-I{tmp_path}",)
    for _ in range(2):
        found = _compiler.find_cubin('#inc\\\nlude "more.h"\n' + PLAIN, "k", options, (9, 0))
        assert not found.kept


# --- modules on CUDA -----------------------------------------------------------------------


class Context(SimpleNamespace):
    """A host's context, the key by which lanes find shared objects."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Modules(FakeDriver):
    """The driver's modules without a driver."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.numbers = itertools.count(1)

    def cuModuleLoadData(self, image: bytes) -> tuple[int, str]:  # noqa: N802
        self.loaded.append(f"module {next(self.numbers)} of {image!r}")
        return 0, self.loaded[-1]

    def cuModuleGetFunction(self, module: str, name: bytes) -> tuple[int, str]:  # noqa: N802
        return (0 if name == b"k" else 500), f"{name!r} of {module}"

    def cuModuleUnload(self, module: str) -> tuple[int]:  # noqa: N802
        self.loaded.remove(module)
        return (0,)


@pytest.fixture
def modules() -> Iterator[Modules]:
    driver = Modules()
    with installed(driver):
        yield driver


def test_modules_are_unloaded_once(modules: Modules) -> None:
    from atomr_accel.libraries.nvrtc.host import _cuda

    driver = modules
    context: Any = Context()
    kernels = _cuda.CudaKernels(context, context)
    do: Any = kernels.handlers
    do[Load](Load(1, b"one", ("k",)))
    do[Load](Load(1, b"one", ("k",)))
    do[Load](Load(2, b"two", ("k",)))
    assert len(driver.loaded) == 2
    with pytest.raises(LibraryError, match="cuModuleGetFunction"):
        do[Load](Load(3, b"three", ("missing",)))
    assert len(driver.loaded) == 2
    for number in (1, 1, 3):
        do[Unload](Unload(number))
    assert driver.loaded == ["module 2 of b'two'"]
    kernels.close()
    assert driver.loaded == []


@on_shared
async def test_statistics_count_kernels_that_were_made(device: Device) -> None:
    before = device.nvrtc.statistics()
    source = 'extern "C" __global__ void counted(float* x) { x[0] += 1; }'
    for _ in range(2):
        await device.nvrtc.compile(source, "counted", cpu=lambda x: None)
    after = device.nvrtc.statistics()
    assert after.kernels - before.kernels == 2
    assert 0 <= after.found - before.found <= 2


class Launches(FakeDriver):
    """Keeps what kernels are launched with: the driver copies it, as this does."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[bytes] = []
        self.attributes: list[int] = []
        self.refused = False

    def cuModuleLoadData(self, _image: bytes) -> tuple[int, int]:  # noqa: N802 (the vendor's name)
        return 0, 1

    def cuModuleGetFunction(self, _module: int, _name: bytes) -> tuple[int, int]:  # noqa: N802 (the vendor's name)
        return 0, 2

    def cuModuleUnload(self, _module: int) -> tuple[int]:  # noqa: N802 (the vendor's name)
        return (0,)

    def cuFuncSetAttribute(self, _function: int, _attribute: int, value: int) -> tuple[int]:  # noqa: N802 (the vendor's name)
        self.attributes.append(value)
        return (1 if self.refused else 0,)

    def cuLaunchKernel(self, *arguments: Any) -> tuple[int]:  # noqa: N802 (the vendor's name)
        _, data, _, size, _ = (ctypes.c_void_p * 5).from_address(arguments[-1])
        count = ctypes.c_size_t.from_address(size or 0).value
        self.launched.append(ctypes.string_at(data or 0, count))
        return (1 if self.refused else 0,)


@pytest.fixture
def launches() -> Iterator[Launches]:
    driver = Launches()
    with installed(driver):
        yield driver


@pytest.mark.parametrize("by_template", [False, True])
def test_each_launch_has_its_own_arguments(launches: Launches, by_template: bool) -> None:
    """Others in number, in kind and in value than those of the launch before."""
    from atomr_accel.libraries.nvrtc.host import _cuda

    context: Any = Context(
        pointer=lambda address: address + 1,
        pointers=lambda addresses: [address + 1 for address in addresses],
    )
    stream: Any = SimpleNamespace(handle=0)
    kernels = _cuda.CudaKernels(context, stream)
    do: Any = kernels.handlers
    do[Load](Load(1, b"one", ("k",)))
    decode = msgspec.msgpack.Decoder(Launch).decode

    def launch(*arguments: int | bytes, shared: int = 0) -> bytes:
        addresses = [each for each in arguments if isinstance(each, int)]

        def message(addresses: list[int]) -> Launch:
            left = iter(addresses)
            made = tuple(
                Array(next(left), (1,), "float32")
                if isinstance(each, int)
                else Scalar(each, "int32")
                for each in arguments
            )
            return Launch(1, 0, (1, 1, 1), (1, 1, 1), shared, made)

        if by_template:
            places = [PLACE | at for at in range(len(addresses))]
            template = Template(msgspec.msgpack.encode(message(places)), decode)
            call = kernels.preparers[Launch](template)
            assert call is not None
            call(addresses)
        else:
            do[Launch](message(addresses))
        return launches.launched[-1]

    def pointer(value: int) -> bytes:
        return (value + 1).to_bytes(8, "little")

    assert launch(16, b"abcd", 32) == pointer(16) + b"abcd" + bytes(4) + pointer(32)
    assert launch(48, b"efgh", 64) == pointer(48) + b"efgh" + bytes(4) + pointer(64)
    assert launch(b"12345678", b"x", b"yz") == b"12345678x\0yz"
    assert launch(16) == pointer(16)
    assert launch() == b""
    assert launch(16, b"abcd", 32) == pointer(16) + b"abcd" + bytes(4) + pointer(32)
    launches.refused = True
    for _ in range(2):
        with pytest.raises(LibraryError, match="cuFuncSetAttribute"):
            launch(16, b"abcd", 32, shared=1 << 16)
    launches.refused = False
    for shared in (1 << 16, 1 << 16, 1 << 14, 3 << 15):
        assert launch(48, b"ijkl", 64, shared=shared) == pointer(48) + b"ijkl" + bytes(4) + pointer(
            64
        )
    assert launches.attributes == [1 << 16] * 3 + [3 << 15]
    launches.refused = True
    with pytest.raises(LibraryError, match="cuLaunchKernel"):
        launch(16)
    kernels.close()
