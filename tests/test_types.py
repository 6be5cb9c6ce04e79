"""Type checkers know what calls give, in every form: mypy holds the types, pytest runs the calls.

How options change what a call gives is in each library's own tests.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, System
from atomr_accel.device.batches._batch import Later
from atomr_accel.libraries._op import Awaited, Collected, Described
from atomr_accel.libraries._request import Request
from atomr_accel.libraries.nvrtc._facade import Kernel
from atomr_accel.libraries.rng._generator import Generator

from .harness import BACKEND, on_shared

pytestmark = [pytest.mark.gpu] if BACKEND == "cuda" else []

INC = 'extern "C" __global__ void inc(float* x) { x[0] += 1; }'


def inc(x: Any) -> None:
    x[0] += 1


def seven() -> int:
    return 7


@on_shared
async def test_on_a_device_calls_are_awaited(device: Device) -> None:
    a = assert_type(await device.put(np.eye(16, dtype=np.float32)), GpuRef)
    assert_type(await device.blas.gemm(a, a), GpuRef)
    assert_type(await device.blaslt.matmul(a, a), GpuRef)
    assert_type(await device.dnn.relu(a), GpuRef)
    spectrum = assert_type(await device.fft.rfft(a), GpuRef)
    assert_type(await device.fft.fft(spectrum), GpuRef)
    generator = assert_type(device.rng.default_rng(7), Generator[Awaited])
    assert_type(await generator.normal(size=8), GpuRef)
    kernel = assert_type(await device.nvrtc.compile(INC, "inc", cpu=inc), Kernel[Awaited])
    assert assert_type(await kernel.launch(1, 1, a), None) is None
    assert_type(await device.zeros(3), GpuRef)
    assert assert_type(await device.get(a), np.ndarray[Any, Any])[0, 0] == 2


@on_shared
async def test_the_system_of_a_device_opens_devices(device: Device) -> None:
    system = assert_type(device.system, System)
    assert isinstance(system, System)
    other = assert_type(await system.open_device(0, backend=BACKEND, name="other"), Device)
    await other.ref.stop()
    assert other.closed


@on_shared
async def test_in_a_batch_calls_give_their_results_at_once(device: Device) -> None:
    generator = device.rng.default_rng(7)
    kernel = await device.nvrtc.compile(INC, "inc", cpu=inc)
    async with device.batch() as batch:
        a = assert_type(batch.put(np.eye(16, dtype=np.float32)), GpuRef)
        assert_type(batch.blas.gemm(a, a), GpuRef)
        assert_type(batch.blaslt.matmul(a, a), GpuRef)
        assert_type(batch.dnn.relu(a), GpuRef)
        spectrum = assert_type(batch.fft.rfft(a), GpuRef)
        assert_type(batch.fft.fft(spectrum), GpuRef)
        drawing = assert_type(batch.using(generator), Generator[Collected])
        assert_type(drawing.normal(size=8), GpuRef)
        launching = assert_type(batch.using(kernel), Kernel[Collected])
        launching.launch(1, 1, a)
        batch.launch(kernel, 1, 1, a)
        assert_type(batch.zeros(3), GpuRef)
        got = assert_type(batch.get(a), np.ndarray[Any, Any])
        later = assert_type(batch.run(seven), Later[int])
    assert got[0, 0] == 3
    assert assert_type(later.value, int) == 7


@on_shared
async def test_in_a_recording_calls_give_their_results_at_once(device: Device) -> None:
    a = await device.put(np.eye(16, dtype=np.float32))
    generator = device.rng.default_rng(7)
    kernel = await device.nvrtc.compile(INC, "inc", cpu=inc)
    async with device.record(a) as program:
        assert_type(program.blas.gemm(a, a), GpuRef)
        assert_type(program.blaslt.matmul(a, a), GpuRef)
        assert_type(program.dnn.relu(a), GpuRef)
        spectrum = assert_type(program.fft.rfft(a), GpuRef)
        assert_type(program.fft.fft(spectrum), GpuRef)
        drawing = assert_type(program.using(generator), Generator[Collected])
        assert_type(drawing.normal(size=8), GpuRef)
        assert_type(program.using(kernel), Kernel[Collected]).launch(1, 1, a)
        program.launch(kernel, 1, 1, a)
        assert_type(program.zeros(3), GpuRef)
    await program.replay(a)
    assert (await device.get(a))[0, 0] == 3


@on_shared
async def test_requests_say_what_they_are_answered_with(device: Device) -> None:
    a = await device.put(np.eye(16, dtype=np.float32))
    requests = device.requests
    gemm = assert_type(requests.blas.gemm(a, a), Request[GpuRef])
    assert_type(requests.blaslt.matmul(a, a), Request[GpuRef])
    assert_type(requests.dnn.relu(a), Request[GpuRef])
    assert_type(requests.fft.fft(a), Request[GpuRef])
    generator = requests.using(device.rng.default_rng(7))
    assert_type(generator, Generator[Described])
    assert_type(generator.normal(size=8), Request[GpuRef])
    kernel = requests.using(await device.nvrtc.compile(INC, "inc", cpu=inc))
    assert_type(kernel, Kernel[Described])
    assert_type(kernel.launch(1, 1, a), Request[None])
    product = assert_type(await device.blas.ref.ask(gemm), GpuRef)
    np.testing.assert_array_equal(await device.get(product), np.eye(16))
