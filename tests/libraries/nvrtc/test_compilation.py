"""Kernels before a device sees them: their parameters, and their compilation."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from atomr_accel import Device, LibraryError, Unsupported
from atomr_accel.executors import compiler as _compiler
from atomr_accel.host.templates import HostTemplate
from atomr_accel.libraries.nvrtc.wire.messages import (
    ArrayArgument,
    LaunchKernel,
    Load,
    Scalar,
    Unload,
)
from atomr_accel.wire import PLACE

from ...fakes.driver import FakeDriver, installed
from ...harness import on_shared

# --- scalars -------------------------------------------------------------------------------


def scale(x: Any, a: Any, n: Any) -> None:
    x[: int(n)] *= a


SCALE: Final = """
    template <typename T> __global__ void scale(T* x, T a, int n) {
        for (int i = 0; i < n; i++) x[i] *= a;
    }
    typedef float real;
    enum class Factor { one = 1, two };
    extern "C" __global__ void scale_real(real* x, real a, int n) {
        for (int i = 0; i < n; i++) x[i] *= a;
    }
    extern "C" __global__ void scale_by(real* x, Factor a, int n) {
        for (int i = 0; i < n; i++) x[i] *= static_cast<int>(a);
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
    if kernel.parameters is None:
        pytest.skip("no compiler has told the parameters")
    if dtype == "int":
        with pytest.raises(TypeError, match=r"argument 1 must be int32, .* not 2\.5"):
            await kernel.launch(1, 1, x, 2.5, 4)
    else:
        await kernel.launch(1, 1, x, 0.5, 4)
        assert (await device.get(x)).tolist() == [0, 1.5, 3, 4.5]
    with pytest.raises(TypeError, match="not float16"):
        await kernel.launch(1, 1, await device.zeros(4, np.float16), 3, 4)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (0.5, r"that of 'Factor', not float; pass numpy\.float32\(...\) or numpy\.float64"),
        (2, r"that of 'Factor', not int; pass numpy\.int32\(...\) or numpy\.int64"),
        (True, r"that of 'Factor', not bool; pass numpy\.bool_"),
        (1j, r"that of 'Factor', not complex; pass numpy\.complex64"),
    ],
)
@on_shared
async def test_a_number_of_unknown_width_is_refused(
    device: Device, value: complex, advice: str
) -> None:
    kernel = await device.nvrtc.compile(SCALE, "scale_by", cpu=scale)
    x = await device.put(np.arange(4, dtype=np.float32))
    if kernel.parameters is None:
        pytest.skip("no compiler has told the parameters")
    with pytest.raises(TypeError, match=advice):
        await kernel.launch(1, 1, x, value, 4)
    await kernel.launch(1, 1, x, np.int32(2), 4)
    assert (await device.get(x)).tolist() == [0, 2, 4, 6]


@on_shared
async def test_a_typedef_takes_numbers_like_its_type(device: Device) -> None:
    kernel = await device.nvrtc.compile(SCALE, "scale_real", cpu=scale)
    x = await device.put(np.arange(4, dtype=np.float32))
    await kernel.launch(1, 1, x, 0.5, 4)
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
def test_unlaunchable_kernel_is_not_kept(folder: Path, options: tuple[str, ...]) -> None:
    """An image that cannot be loaded is kept for no caller and no option."""
    pytest.importorskip("cuda.bindings.nvrtc")
    with pytest.raises(Unsupported, match="makes nothing that a driver can load"):
        _compiler.find_cubin(PLAIN, "k", options, (9, 0))
    assert not [*folder.glob("*")]


@pytest.mark.headers
@pytest.mark.parametrize("kept", [b"", b"\x7fELF" + bytes(12) + b"\1\0"])
def test_kept_kernel_that_cannot_be_launched_is_compiled_again(
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
    decode = msgspec.msgpack.Decoder(LaunchKernel).decode

    def launch(*arguments: int | bytes, shared: int = 0) -> bytes:
        addresses = [each for each in arguments if isinstance(each, int)]

        def message(addresses: list[int]) -> LaunchKernel:
            left = iter(addresses)
            made = tuple(
                ArrayArgument(next(left), (1,), "float32")
                if isinstance(each, int)
                else Scalar(each, "int32")
                for each in arguments
            )
            return LaunchKernel(1, 0, (1, 1, 1), (1, 1, 1), shared, made)

        if by_template:
            places = [PLACE | at for at in range(len(addresses))]
            template = HostTemplate(msgspec.msgpack.encode(message(places)), decode)
            call = kernels.preparers[LaunchKernel](template)
            assert call is not None
            call(addresses)
        else:
            do[LaunchKernel](message(addresses))
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
