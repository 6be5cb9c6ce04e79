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
