"""Requests: where they are sent, what is said of those sent elsewhere, and what they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from atomr_accel import open_system
from atomr_accel.libraries._request import Request
from atomr_accel.libraries._table import NAMES
from tests.harness import BACKEND, SECOND, on_shared, opened, program

if TYPE_CHECKING:
    from atomr_accel import Device

EYE = np.eye(2, dtype=np.float32)
KERNEL = 'extern "C" __global__ void nothing() {}'


# --- sent elsewhere --------------------------------------------------------------------------


async def _requests_of(device: Device) -> dict[str, Request[Any]]:
    """Requests that name no buffer: nothing but what has made them says whose they are."""
    requests = device.requests
    generator = device.rng.default_rng(seed=1)
    kernel = await device.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
    return {
        "rng": requests.rng.normal(size=4),
        "a generator": requests.using(generator).normal(size=4),
        "one it has made": requests.rng.default_rng(seed=1).normal(size=4),
        "a kernel": requests.using(kernel).launch(1, 1),
        "nvrtc": requests.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None),
    }


@program
async def test_a_request_is_carried_out_on_the_device_that_made_it_alone() -> None:
    async with open_system("app") as system:
        one = await system.open_device(0, backend=BACKEND, name="one")
        two = await system.open_device(SECOND, backend=BACKEND, name="two")
        for what, request in (await _requests_of(two)).items():
            library = "nvrtc" if what in ("a kernel", "nvrtc") else "rng"
            said = rf"made by the requests of (another )?{two.name}.*sent to {one.name}"
            with pytest.raises(ValueError, match=said):
                await getattr(one, library).ref.ask(request)
            async with one.batch() as batch:
                with pytest.raises(ValueError, match=said):
                    batch.perform(request)
            await getattr(two, library).ref.ask(request)


@program
async def test_what_another_device_has_made_is_refused_with_both_names() -> None:
    async with opened() as one, opened(SECOND) as two:
        generator = two.rng.default_rng(seed=1)
        kernel = await two.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
        both = f"{two.name}.*{one.name}"
        for made in (generator, kernel, two.rng):
            with pytest.raises(TypeError, match=both):
                one.requests.using(made)
            async with one.batch() as batch:
                with pytest.raises(TypeError, match=both):
                    batch.using(made)
        async with one.batch() as batch:
            with pytest.raises(TypeError, match=both):
                batch.launch(kernel, 1, 1)


@on_shared
async def test_a_librarys_actor_takes_its_own_requests_alone(device: Device) -> None:
    x = await device.put(np.ones(4, np.complex64))
    request = device.requests.fft.fft(x)
    for name in NAMES:
        if name != "fft":
            with pytest.raises(TypeError, match=rf"fft\.fft.*/gpu-0/{name}.*device\.fft\.ref"):
                await getattr(device, name).ref.ask(request)
    kernel = await device.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
    launch = device.requests.using(kernel).launch(1, 1)
    with pytest.raises(TypeError, match=r"kernel nothing.*device\.nvrtc\.ref"):
        await device.blas.ref.ask(launch)
    await device.nvrtc.ref.ask(launch)
    assert (await device.get(await device.fft.ref.ask(request))).tolist() == [4, 0, 0, 0]


# --- given where something else is wanted ----------------------------------------------------


@on_shared
async def test_a_library_is_nothing_that_it_has_made(device: Device) -> None:
    async with device.batch() as batch:
        for library in (device.rng, batch.rng, device.requests.rng):
            for use in (batch, device.requests):
                using: Any = use.using
                with pytest.raises(TypeError, match=r"rng is a library itself.*as its attribute"):
                    using(library)
        generator: Any = batch.rng.default_rng(seed=1)
        with pytest.raises(TypeError, match=r"in a batch, .* have it made by the device"):
            device.requests.using(generator)
        with pytest.raises(TypeError, match="GpuRef was not made by a library"):
            batch.using(batch.put(EYE))  # type: ignore[call-overload]


@on_shared
async def test_a_request_is_not_awaited(device: Device) -> None:
    x = await device.put(EYE)
    request: Any = device.requests.blas.gemm(x, x)
    with pytest.raises(TypeError, match=r"blas\.gemm.*device\.blas\.ref\.ask\(request\)"):
        await request
    kernel = await device.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
    request = device.requests.using(kernel).launch(1, 1)
    with pytest.raises(TypeError, match=r"kernel nothing.*batch\.perform\(request\)"):
        await request


def _same(thing: object) -> object:
    return thing


@on_shared
async def test_a_function_is_not_given_what_is_there_later(device: Device) -> None:
    x = await device.put(EYE)
    request = device.requests.blas.gemm(x, x)
    with pytest.raises(TypeError, match=r"given, the request blas\.gemm, .*carry it out first"):
        await device.run(_same, {"nested": request})
    with pytest.raises(TypeError, match=r"given, a coroutine: did you forget `await` before gemm"):
        await device.run(_same, [device.blas.gemm(x, x)])
    async with device.batch() as batch:
        later = batch.run(_same, 1)
        with pytest.raises(TypeError, match=r"batch\.run has returned.*pass `later\.value`"):
            batch.run(_same, later)
        with pytest.raises(TypeError, match=r"given, the request blas\.gemm"):
            batch.run(_same, request)
        with pytest.raises(TypeError, match=r"given, a coroutine: did you forget `await`"):
            batch.run(_same, device.blas.gemm(x, x))
    with pytest.raises(TypeError, match=r"batch\.run has returned.*pass `later\.value`"):
        async with device.batch() as batch:
            later = batch.run(_same, 1)
            batch.run(_same, {"nested": later})
    async with device.batch() as batch:
        later = batch.run(_same, 1)
    with pytest.raises(TypeError, match=r"batch\.run has returned.*pass `later\.value`"):
        await device.run(_same, later)
    assert await device.run(_same, later.value) == 1
