"""Textures, surfaces and CUDA arrays: refusals, arguments of functions, and driver calls."""

# ruff: noqa: N802, N815 (the names of the fake driver's methods are the vendor's)

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from atomr_accel import Device, GpuRefStale, LibraryError, Surface, Texture, Unsupported
from atomr_accel.libraries.nvrtc.wire.messages import (
    CopyArray,
    FreeArray,
    LaunchKernel,
    Load,
    MakeArray,
    SurfaceObject,
    TextureObject,
)
from atomr_accel.testing import poison
from tests.fakes.driver import FakeDriver, installed
from tests.harness import cpu_only, needs_nvrtc, on_shared, opened

LINEAR: Final = {"filter": "linear"}


@pytest.mark.parametrize(
    ("shape", "dtype", "arguments", "error", "said"),
    [
        ((8,), "f8", {}, Unsupported, "do not know elements of float64; they know uint8"),
        ((8,), "i8", {}, Unsupported, "int64"),
        ((8,), ml_dtypes.bfloat16, {}, Unsupported, "bfloat16"),
        ((8, 8), "f4", {"channels": 3}, ValueError, "channels must be 1, 2 or 4, not 3"),
        ((8, 8), "f4", {"channels": True}, ValueError, "channels must be"),
        ((8, 8), "f4", {"channels": 4}, ValueError, "channels=4 are the last axis"),
        ((), "f4", {}, ValueError, "one to three axes of texels"),
        ((1, 1, 1, 8), "f4", {}, ValueError, "one to three axes of texels"),
        ((8, 8), "f4", {"filter": "cubic"}, ValueError, "filter must be 'point' or 'linear'"),
        ((8, 8), "f4", {"read": "float"}, ValueError, "read must be 'element' or 'normalized'"),
        ((8, 8), "f4", {"normalized": 1}, TypeError, "normalized must be True or False"),
        ((8, 8), "u1", {"srgb": None}, TypeError, "srgb must be True or False"),
        ((8, 8), "f4", {"address": "edge"}, ValueError, "address must be 'wrap', 'clamp'"),
        ((8, 8), "f4", {"address": ("clamp",)}, ValueError, "one mode or 2"),
        ((8, 8), "f4", {"address": "wrap"}, ValueError, "needs coordinates from 0 to 1"),
        ((8, 8), "f4", {"read": "normalized"}, ValueError, "whole numbers of 8 and 16 bits"),
        ((8, 8), "u4", {"read": "normalized"}, ValueError, "whole numbers of 8 and 16 bits"),
        ((8, 8), "i4", LINEAR, ValueError, "filter='linear' gives floats"),
        ((8, 32), "u1", {"srgb": True}, ValueError, "uint8 with read='normalized'"),
        ((8, 8), "f4", {"border": ()}, ValueError, "a number for each channel"),
        ((8, 8), "f4", {"border": "blue"}, TypeError, "border takes numbers"),
        ((8, 7), "f4", {}, ValueError, "take 28 bytes; .* multiple of 32: pad the rows, or copy"),
        ((0, 8), "f4", {}, ValueError, "0 rows"),
        ((0,), "f4", {}, ValueError, "no texels"),
        ((8, 8, 8), "f4", {}, ValueError, "three axes of texels: copy it into a device.nvrtc.cuda"),
        (
            (8,),
            "f4",
            LINEAR,
            ValueError,
            r"a Texture of <GpuRef float32\[8\] on .*:0, generation 1> must have the",
        ),
        ((8,), "f4", {"address": "border"}, ValueError, "tex1Dfetch"),
    ],
)
@on_shared
async def test_invalid_texture_is_refused(
    device: Device,
    shape: tuple[int, ...],
    dtype: Any,
    arguments: dict[str, Any],
    error: type[Exception],
    said: str,
) -> None:
    ref = await device.zeros(shape, dtype)
    with pytest.raises(error, match=said):
        Texture(ref, **arguments)


@on_shared
async def test_invalid_cuda_array_is_refused(device: Device) -> None:
    for wrong in (np.zeros(3), None):
        with pytest.raises(TypeError, match="a Texture is of a GpuRef, not of"):
            Texture(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a CUDA array is of a GpuRef, not of"):
            await device.nvrtc.cuda_array(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a Surface is of a CudaArray, not of"):
            Surface(wrong)  # type: ignore[arg-type]
    x = await device.zeros((4, 4), np.float32)
    with pytest.raises(TypeError, match="surface must be True or False"):
        await device.nvrtc.cuda_array(x, surface=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="made without surface=True"):
        Surface(await device.nvrtc.cuda_array(x))
    with pytest.raises(ValueError, match="axis 0 has 70000 texels; a CUDA array of 2 axes"):
        await device.nvrtc.cuda_array(await device.zeros((70_000, 1), np.uint8))


SOURCE: Final = r"""
extern "C" __global__ void sample(float* out, cudaTextureObject_t image, float x, float y) {
    *out = tex2D<float>(image, x, y);
}
extern "C" __global__ void fetch(int* out, unsigned long long line, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = tex1Dfetch<int>(line, threadIdx.x);
}
extern "C" __global__ void draw(cudaSurfaceObject_t canvas, float value) {
    surf3Dwrite(value, canvas, threadIdx.x * 4, threadIdx.y, threadIdx.z);
}
"""


def sample(out: Any, image: Any, x: Any, y: Any) -> None:
    out[...] = image[int(y), int(x)]


def fetch(out: Any, line: Any, n: Any) -> None:
    out[:n] = line[:n]


def draw(canvas: Any, value: Any) -> None:
    canvas[...] = value


async def kernels(device: Device) -> Any:
    twins: dict[str, Any] = {"sample": sample, "fetch": fetch, "draw": draw}
    module = await device.nvrtc.compile_module(SOURCE, [*twins], cpu=twins)
    return [await module.kernel(name) for name in twins]


@needs_nvrtc
@on_shared
async def test_textures_of_buffers(device: Device) -> None:
    sampled, fetched, _ = await kernels(device)
    image = await device.put(np.arange(64, dtype=np.float32).reshape(8, 8))
    out, line = await device.zeros((), np.float32), await device.put(np.arange(9, dtype=np.int32))
    texture = Texture(image)
    assert texture.address == ("clamp", "clamp")
    await sampled.launch(1, 1, out, texture, 3.5, 2.5)
    assert await device.get(out) == 19
    await device.fill(image, 7)  # it is a view
    await sampled.launch(1, 1, out, texture, 3.5, 2.5)
    assert await device.get(out) == 7
    copied = await device.zeros(9, np.int32)
    await fetched.launch(1, 32, copied, Texture(line), 9)
    assert (await device.get(copied)).tolist() == [*range(9)]
    with pytest.raises(TypeError, match="must be a GpuRef, not Texture"):
        await sampled.launch(1, 1, texture, texture, 0.0, 0.0)
    with pytest.raises(TypeError, match=r"argument 2 must be for 'float', .* not a Texture"):
        await sampled.launch(1, 1, out, texture, texture, 0.0)
    with pytest.raises(ValueError, match=r"at byte 32 of its buffer; textures want .* of 512"):
        Texture(image[1:])
    with pytest.raises(ValueError, match="a Texture's buffer is not contiguous"):
        Texture(image.T)
    await device.free(image)
    with pytest.raises(GpuRefStale):
        await sampled.launch(1, 1, out, texture, 0.0, 0.0)


@on_shared
async def test_cuda_arrays(device: Device) -> None:
    sampled, _, drawn = await kernels(device)
    host = np.arange(35, dtype=np.float32).reshape(5, 7)
    image = await device.put(host)
    array = await device.nvrtc.cuda_array(image)
    assert (array.shape, array.dtype.name, array.channels) == ((5, 7), "float32", 1)
    assert "CudaArray float32[5, 7]" in repr(array)
    await device.fill(image, 0)  # it is a copy
    out = await device.zeros((), np.float32)
    await sampled.launch(1, 1, out, Texture(array, filter="linear"), 3.5, 2.5)
    assert await device.get(out) == 17
    await array.copy_to(image)
    np.testing.assert_array_equal(await device.get(image), host)
    await device.fill(image, 5)
    async with device.batch() as batch:
        batch.using(array).copy_from(image)
        batch.launch(sampled, 1, 1, out, Texture(array), 1.5, 1.5)
    assert await device.get(out) == 5
    for wrong in (await device.zeros((7, 5), np.float32), await device.zeros((5, 7), np.int32)):
        with pytest.raises(ValueError, match=r"copy_to takes float32\[5, 7\], not"):
            await array.copy_to(wrong)
    volume = await device.zeros((2, 3, 4), np.float32)
    canvas = await device.nvrtc.cuda_array(volume, surface=True)
    await drawn.launch(1, (4, 3, 2), Surface(canvas), 2.5)
    await canvas.copy_to(volume)
    assert (await device.get(volume) == 2.5).all()
    if drawn.parameters is not None:
        with pytest.raises(TypeError, match="must be a GpuRef, not Surface"):
            await sampled.launch(1, 1, Surface(canvas), Texture(array), 0.0, 0.0)
        with pytest.raises(
            TypeError, match=r"must be for 'float', .* not a Surface for 'cudaSurfaceObject_t'"
        ):
            await drawn.launch(1, (4, 3, 2), Surface(canvas), Surface(canvas))


@on_shared
async def test_cuda_arrays_know_their_channels(device: Device) -> None:
    array = await device.nvrtc.cuda_array(await device.zeros((3, 8, 4), np.uint8), channels=4)
    for given in ({}, {"channels": 4}):
        assert Texture(array, **given).channels == 4  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 channels> has not 2"):
        Texture(array, channels=2)


@on_shared
async def test_cuda_arrays_are_freed(device: Device) -> None:
    sampled, _, _ = await kernels(device)
    image = await device.put(np.full((4, 8), 3, np.float32), sealed=True)
    out = await device.zeros((), np.float32)
    for batched in (False, True):
        array = await device.nvrtc.cuda_array(image)
        texture = Texture(array)
        async with device.record() as recording:
            with pytest.raises(Unsupported, match="not when a recording is replayed"):
                recording.using(array).free()
        if batched:
            async with device.batch() as batch:
                batch.launch(sampled, 1, 1, out, texture, 0.5, 0.5)
                batch.using(array).free()
                with pytest.raises(GpuRefStale, match=r"a CUDA array of float32\[4, 8\] was freed"):
                    batch.launch(sampled, 1, 1, out, texture, 0.5, 0.5)
        else:
            await sampled.launch(1, 1, out, texture, 0.5, 0.5)
            await array.free()
        assert await device.get(out) == 3
        for call in (array.free, lambda: sampled.launch(1, 1, out, texture, 0.5, 0.5)):  # noqa: B023
            with pytest.raises(GpuRefStale, match="was freed"):
                await call()
    async with device.record() as recording:
        with pytest.raises(Unsupported, match="cannot be in a batch or a recording; await it"):
            recording.nvrtc.cuda_array(image)


@on_shared
async def test_cuda_arrays_are_of_one_device(device: Device) -> None:
    sampled, _, _ = await kernels(device)
    out = await device.zeros((), np.float32)
    async with opened(isolation="thread") as other:
        for sealed in (False, True):
            array = await other.nvrtc.cuda_array(
                await other.put(np.zeros((2, 8), "f4"), sealed=sealed)
            )
            with pytest.raises(
                ValueError,
                match=r"must be o[fn] .*:0, .*where the op runs, not o[fn] .*:0",
            ):
                await sampled.launch(1, 1, out, Texture(array), 0.5, 0.5)


@on_shared
async def test_recordings_with_textures(device: Device) -> None:
    sampled, _, _ = await kernels(device)
    images = [await device.full((8, 8), value, np.float32) for value in (1, 2)]
    array = await device.nvrtc.cuda_array(images[0])
    out, other = await device.zeros((), np.float32), await device.zeros((), np.float32)
    async with device.record(images[0]) as recording:
        recording.launch(sampled, 1, 1, out, Texture(images[0]), 0.5, 0.5)
        recording.launch(sampled, 1, 1, other, Texture(array), 0.5, 0.5)
    await recording.replay(images[1])
    assert [float(await device.get(each)) for each in (out, other)] == [2, 1]
    await array.copy_from(images[1])
    await recording.replay()
    assert [float(await device.get(each)) for each in (out, other)] == [1, 2]


@cpu_only
@pytest.mark.slow
async def test_fault_leaves_stale_textures() -> None:
    async with opened() as device:
        sampled, _, _ = await kernels(device)
        sealed = await device.put(np.full((4, 8), 3, np.float32), sealed=True)
        plain = await device.zeros((4, 8), np.float32)
        kept, lost = await device.nvrtc.cuda_array(sealed), await device.nvrtc.cuda_array(plain)
        await poison(device)
        out = await device.zeros((), np.float32)
        with pytest.raises(GpuRefStale, match="a CUDA array of float32"):
            await sampled.launch(1, 1, out, Texture(lost), 0.5, 0.5)
        async with device.record() as recording:
            with pytest.raises(GpuRefStale, match="outside of a recording"):
                recording.launch(sampled, 1, 1, out, Texture(kept), 0.5, 0.5)
        for _ in range(2):
            await sampled.launch(1, 1, out, Texture(kept), 0.5, 0.5)
            assert await device.get(out) == 3
        async with device.batch() as batch:
            batch.launch(sampled, 1, 1, out, Texture(kept, address="border"), 0.5, 0.5)
        await sampled.launch(1, 1, out, Texture(sealed), 0.5, 0.5)
        assert await device.get(out) == 3


# --- arguments of the driver --------------------------------------------------------------------


class Textured(FakeDriver):
    """A fake driver that records created and destroyed objects."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}
        self.copied: list[Any] = []
        self.launched: list[bytes] = []
        self.status = 0

    def _new(self, what: Any) -> Any:
        self.made[number := 100 + len(self.made) + len(self.copied)] = what
        return self.status, number

    def cuModuleLoadData(self, _image: bytes) -> Any:
        return 0, 1

    def cuModuleGetFunction(self, _module: int, _symbol: bytes) -> Any:
        return 0, 2

    def cuModuleUnload(self, _module: int) -> Any:
        return (0,)

    def cuArray3DCreate(self, descriptor: Any) -> Any:
        return self._new(descriptor)

    def cuTexObjectCreate(self, resource: Any, how: Any, view: None) -> Any:
        assert view is None
        return self._new((resource, how))

    def cuSurfObjectCreate(self, resource: Any) -> Any:
        return self._new((resource, None))

    def cuArrayDestroy(self, handle: Any) -> Any:
        del self.made[int(handle)]
        return (0,)

    cuTexObjectDestroy = cuSurfObjectDestroy = cuArrayDestroy

    def cuMemcpy3DAsync(self, copy: Any, _stream: object) -> Any:
        self.copied.append(copy)
        return (self.status,)

    def cuLaunchKernel(self, *arguments: Any) -> Any:
        _, data, *_ = (ctypes.c_void_p * 5).from_address(arguments[-1])
        self.launched.append(ctypes.string_at(data or 0, 8))
        return (0,)


@pytest.fixture
def driver() -> Iterator[Textured]:
    made = Textured()
    with installed(made):
        yield made


class Context:
    """A context in which addresses are pointers."""

    prints = False

    def pointer(self, address: int) -> int:
        return address


def texture(array: int = 0, extent: tuple[int, ...] = (4, 8), address: int = 512) -> TextureObject:
    modes = (3, 0, 1)[: len(extent)]
    border = (0.5, 0.0, 0.0, 0.0)
    where = 0 if array else address
    return TextureObject(
        where, array, (*extent, 2), "float32", extent, 0x20, 2, modes, True, 2, border
    )


def launch(argument: Any) -> LaunchKernel:
    return LaunchKernel(1, 0, (1, 1, 1), (1, 1, 1), 0, (argument,), None)


def executor(**stream: Any) -> Any:
    from atomr_accel.libraries.nvrtc.host._cuda import CudaKernels

    context: Any = Context()
    lane: Any = SimpleNamespace(handle=7, captures=False, **stream)
    made: Any = CudaKernels(context, lane)
    made.handlers[Load](Load(1, b"\x7fELF", ("k",)))
    return made


def test_textures_of_memory(driver: Textured) -> None:
    kernels = executor()
    do: Any = kernels.handlers[LaunchKernel]
    do(launch(texture()))
    do(launch(texture()))
    ((resource, how),) = driver.made.values()
    (number,) = driver.made
    assert driver.launched == [number.to_bytes(8, "little")] * 2
    pitch = resource.res.pitch2D
    assert (int(resource.resType), int(pitch.devPtr), int(pitch.format)) == (3, 512, 0x20)
    assert (pitch.width, pitch.height, pitch.pitchInBytes, pitch.numChannels) == (8, 4, 64, 2)
    assert [int(mode) for mode in how.addressMode] == [3, 0, 1]
    assert (int(how.filterMode), how.flags, how.borderColor[0]) == (1, 2, 0.5)
    do(launch(texture(extent=(8,))))
    linear = [*driver.made.values()][1][0]
    assert int(linear.resType) == 2
    assert linear.res.linear.sizeInBytes == 64
    for address in range(1024, 1024 + 300):
        do(launch(texture(address=address)))
    assert len(driver.made) <= 256
    kernels.close()
    assert not driver.made


def test_a_graph_has_textures_of_its_own(driver: Textured) -> None:
    kept: list[Any] = []
    stream = SimpleNamespace(handle=7, captures=True, keep=lambda *thing: kept.append(thing))
    from atomr_accel.libraries.nvrtc.host._cuda import CudaKernels

    context: Any = Context()
    kernels: Any = CudaKernels(context, stream)  # type: ignore[arg-type]
    kernels.handlers[Load](Load(1, b"\x7fELF", ("k",)))
    for _ in range(2):
        kernels.handlers[LaunchKernel](launch(texture()))
    kernels.close()
    assert len(driver.made) == len(kept) == 2
    for _, give_back in kept:
        give_back()
    assert not driver.made


def test_cuda_arrays_by_the_driver(driver: Textured) -> None:
    kernels = executor()
    do = kernels.handlers
    do[MakeArray](MakeArray(9, 512, (3, 4, 8, 2), "float32", (3, 4, 8), 0x20, 2, True))
    (descriptor,) = driver.made.values()
    assert (descriptor.Width, descriptor.Height, descriptor.Depth) == (8, 4, 3)
    assert (int(descriptor.Format), descriptor.NumChannels, descriptor.Flags) == (0x20, 2, 2)
    (copy,) = driver.copied
    assert (int(copy.srcDevice), copy.srcPitch, copy.srcHeight) == (512, 64, 4)
    assert (copy.WidthInBytes, copy.Height, copy.Depth) == (64, 4, 3)
    assert int(copy.srcMemoryType) == 2
    assert int(copy.dstMemoryType) == 3
    do[MakeArray](MakeArray(9, 1024, (3, 4, 8, 2), "float32", (3, 4, 8), 0x20, 2, True))
    assert len(driver.made) == 1  # it is there already
    do[CopyArray](CopyArray(9, 2048, to_array=False))
    assert int(driver.copied[-1].dstDevice) == 2048
    for argument in (texture(9, (3, 4, 8)), SurfaceObject(9), texture(9, (3, 4, 8))):
        do[LaunchKernel](launch(argument))
    assert len(driver.made) == 3
    resource, how = [*driver.made.values()][1]
    assert int(resource.resType) == 0
    assert [int(mode) for mode in how.addressMode] == [3, 0, 1]
    do[FreeArray](FreeArray(9))
    do[FreeArray](FreeArray(9))
    assert not driver.made
    do[MakeArray](MakeArray(10, 512, (8,), "uint8", (8,), 0x01, 1, False))
    assert next(iter(driver.made.values())).Height == 0
    kernels.close()
    assert not driver.made


def test_a_copy_that_fails_leaves_no_array(driver: Textured) -> None:
    do = executor().handlers
    driver.change(cuMemcpy3DAsync=lambda _copy, _stream: (1,))
    with pytest.raises(LibraryError, match="cuMemcpy3DAsync"):
        do[MakeArray](MakeArray(9, 512, (8,), "uint8", (8,), 0x01, 1, False))
    assert not driver.made
