"""Mistakes that are easily made, and their error messages."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from atomr_accel import Device, DeviceLost, DeviceUnavailable, GpuRefStale, open_device

from ..harness import BACKEND, opened


@pytest.fixture
def no_other_warning() -> Iterator[None]:
    """A coroutine that is never awaited warns when it is collected: that is not wanted twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


FORGOTTEN: dict[str, Callable[[Device, Any], Awaitable[Any]]] = {
    "get": lambda device, x: device.get(device.put(x)),  # type: ignore[arg-type]
    "put": lambda device, x: device.put(device.put(x)),
    "free": lambda device, x: device.free(device.put(x)),  # type: ignore[arg-type]
    "copy": lambda device, x: device.copy(device.put(x)),  # type: ignore[arg-type]
    "fill": lambda device, x: device.fill(device.put(x), 1),  # type: ignore[arg-type]
    "share": lambda device, x: device.share(device.put(x)),  # type: ignore[arg-type]
    "adopt": lambda device, x: device.adopt(device.put(x)),
    "gemm": lambda device, x: device.blas.gemm(device.put(x), x),  # type: ignore[arg-type]
    "relu": lambda device, x: device.dnn.relu(device.put(x)),  # type: ignore[arg-type]
    "fft": lambda device, x: device.fft.fft(device.put(x)),  # type: ignore[arg-type]
    "run": lambda device, x: device.run(np.sum, device.put(x)),
    "run it": lambda device, x: device.run(device.put(x)),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("call", FORGOTTEN.values(), ids=FORGOTTEN)
async def test_a_forgotten_await(call: Callable[[Device, Any], Awaitable[Any]]) -> None:
    async with opened(isolation="thread") as device:
        with pytest.raises(TypeError, match=r"coroutine: did you forget `await` before put\(") as e:
            await call(device, np.eye(2))
        assert "put it on the device" not in str(e.value)


async def test_a_forgotten_await_is_said_once(no_other_warning: None) -> None:
    async with opened(isolation="thread") as device:
        with pytest.raises(TypeError, match="did you forget"):
            await device.get(device.put(np.eye(2)))  # type: ignore[arg-type]


async def test_put_error_names_the_parameter() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.eye(2))
        with pytest.raises(TypeError) as info:
            await device.blas.gemm(x, np.eye(2))  # type: ignore[arg-type]
        assert str(info.value) == (
            "b must be a GpuRef, not ndarray; put it on the device first: b = await device.put(b)"
        )
        for wrong in (None, "x", object()):  # nothing that could be put
            with pytest.raises(TypeError) as info:
                await device.blas.gemm(x, wrong)  # type: ignore[arg-type]
            assert str(info.value) == f"b must be a GpuRef, not {type(wrong).__name__}"
        with pytest.raises(TypeError) as info:  # there is no name that could be assigned to
            await device.blas.gemm_grouped_batched([x, np.eye(2)], [x, x])  # type: ignore[list-item]
        assert str(info.value).endswith("; put it on the device first, by device.put")
        assert "b = await" not in str(info.value)
        assert "] = await" not in str(info.value)


@pytest.mark.parametrize(
    "wrong", [5, 1.5, "a", np.int8, [], object()], ids=lambda wrong: type(wrong).__name__
)
async def test_a_buffer_of_another_type_raises_a_type_error(wrong: Any) -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.ones((2, 4), np.float32))
        rng, dnn = device.rng, device.dnn
        attend = device.flash_attention.flash_attn_with_kvcache
        calls: list[Callable[[], Any]] = [
            lambda: rng.random(3, out=wrong),
            lambda: rng.beta(1, 1, out=wrong),
            lambda: rng.integers(3, out=wrong),
            lambda: dnn.softmax(x[:, ::2], out=wrong),
            lambda: device.sparse.put(wrong),
            lambda: device.sparse.put_sliced_ell(wrong),
            lambda: attend(x, wrong, x),
            lambda: attend(wrong, x, x),
        ]
        for call in calls:
            with pytest.raises(TypeError):
                await call()
        matrix = await device.sparse.put(scipy.sparse.eye_array(2, format="coo"))
        for put in (device.sparse.put, device.sparse.put_sliced_ell):
            with pytest.raises(TypeError, match="sparse arrays of SciPy's"):
                await put(matrix)


async def test_two_devices_of_one_index_have_two_names() -> None:
    async with opened(isolation="thread") as one, opened(isolation="thread") as two:
        assert one.name != two.name
        x, y = await one.put(np.eye(2)), await two.put(np.eye(2))
        with pytest.raises(ValueError, match="must be on") as info:
            await two.get(x)
        assert str(info.value) == (
            f"ref must be on {two.name}, where the op runs, not on {one.name}; "
            "`device.copy`, of the device that the op runs on, brings it there"
        )
        with pytest.raises(ValueError, match=rf"not on {re.escape(two.name)}; `device\.copy`"):
            await one.blas.gemm(x, y)
        np.testing.assert_array_equal(await two.get(await two.copy(x)), np.eye(2))  # as it says
    async with opened(isolation="thread") as three:
        assert three.name == one.name  # names of devices that are over are free
    with pytest.raises(DeviceUnavailable):
        async with open_device(-1, backend=BACKEND, isolation="thread"):
            pytest.fail("opened")
    async with opened(isolation="thread") as four:
        assert four.name == one.name


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
async def test_a_ref_of_a_closed_device_says_so(sealed: bool) -> None:
    async with opened(isolation="thread") as closed:
        x = await closed.put(np.eye(2), sealed=sealed)
    async with opened(isolation="thread") as device:
        for call in (lambda: device.get(x), lambda: device.blas.gemm(x, x)):
            with pytest.raises(ValueError, match="which is closed") as info:
                await call()
            assert str(info.value).endswith(
                f"must be on {device.name}, where the op runs, not on {closed.name}, which is "
                "closed: its 'async with' block was left, so its buffers are gone; put the data "
                "again"
            )
        y = await device.put(np.eye(2))
        with pytest.raises(DeviceLost, match="is closed: its 'async with' block was left; ref is"):
            await closed.get(y)
    with pytest.raises(DeviceLost if sealed else GpuRefStale, match="is closed: its 'async with'"):
        await closed.get(x)


@pytest.mark.parametrize(
    "copied", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"]
)
async def test_a_ref_says_what_to_do_instead_of_copying_it(copied: Callable[[Any], Any]) -> None:
    async with opened(isolation="thread") as device:
        for thing in (await device.put(np.eye(2)), [{"x": await device.put(np.eye(2))}]):
            if copied is copy.copy and isinstance(thing, list):
                continue  # the list is copied, and not what is in it
            with pytest.raises(TypeError) as info:
                copied(thing)
            for way in ("device.share(ref)", "device.get(ref)", "device.copy(ref)"):
                assert f"await {way}" in str(info.value)


async def test_closed_is_said() -> None:
    async with open_device(0, backend=BACKEND, isolation="thread") as device:
        assert not device.closed
    assert device.closed


async def test_ref_memory_attributes_are_read_only() -> None:
    async with opened() as device:
        ref = await device.put(np.zeros(64))
        for name, value in (("shape", (128,)), ("dtype", np.dtype(np.int8)), ("nbytes", 1 << 20)):
            with pytest.raises(AttributeError, match=f"a GpuRef's {name} cannot be set; ref.resh"):
                setattr(ref, name, value)
        with pytest.raises(AttributeError, match="a GpuRef's other cannot be set"):
            ref.other = 1
        assert ref.shape == (64,)
        assert ref.dtype is np.dtype(np.float64)
        assert ref.nbytes == 512


async def test_a_recording_that_was_not_entered_says_so() -> None:
    async with opened() as device:
        x = await device.put(np.eye(4, dtype=np.float32))
        recording = device.record(x)
        with pytest.raises(RuntimeError, match="has not begun: enter it"):
            await recording.replay()
        with pytest.raises(RuntimeError, match="has not begun: enter it"):
            recording.blas.gemm(x, x)
