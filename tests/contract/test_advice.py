"""Errors say what to write instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device, GpuRef, LinAlgError, open_device, open_system
from atomr_accel._calling import clarify
from atomr_accel.patterns import open_pipeline, open_replica_pool

from ..harness import BACKEND, opened

DIM = "got an unexpected keyword argument 'dim'; write axis="
NOWHERE = "fetch the arrays first: host = await device.get(x)"


def assign(x: Any) -> None:
    x[0] = 1


async def recorded(device: Device, x: GpuRef) -> None:
    async with device.record() as recording:
        recording.get(x)  # type: ignore[attr-defined]


async def sealed(device: Device, _: GpuRef) -> None:
    kept = await device.put(np.eye(2), sealed=True)
    await device.fill(kept, 1)


async def singular(device: Device, _: GpuRef) -> None:
    await device.linalg.inv(await device.put(np.diag([1.0, 0.0])))


async def indefinite(device: Device, _: GpuRef) -> None:
    await device.linalg.cholesky(await device.put(np.diag([1.0, -1.0])))


def batched(device: Device, x: GpuRef) -> Any:
    return device.requests.array.sort(x, dim=0)  # type: ignore[call-arg]


MISTAKES: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "zeros(3, 4)": (lambda d, x: d.zeros(3, 4), TypeError, "shape as a tuple: (3, 4)"),
    "zeros(3, 4, 5)": (lambda d, x: d.zeros(3, 4, 5), TypeError, "tuple: zeros((3, 4, 5))"),
    "full dtype": (lambda d, x: d.full(3, 4, 5), TypeError, "dtype must be a dtype"),
    "dim": (
        lambda d, x: d.array.sum(x, dim=0),
        TypeError,
        f"sum() {DIM}",
    ),
    "keepdim": (lambda d, x: d.array.argmax(x, keepdim=True), TypeError, "; write keepdims="),
    "dim of a method": (
        lambda d, x: x.sum(dim=0),
        TypeError,
        f"sum() {DIM}",
    ),
    "dim of a request": (
        batched,
        TypeError,
        "argument 'dim'; write axis=",
    ),
    "a typing error": (lambda d, x: d.put(x, seald=True), TypeError, "; write sealed="),
    "stream": (lambda d, x: d.blas.gemm(x, x, stream=1), TypeError, "orders ops by the buffers"),
    "order": (lambda d, x: d.zeros(3, order="F"), TypeError, "new buffers are in C order"),
    "device": (
        lambda d, x: d.put(x, device="cuda"),
        TypeError,
        "argument 'device'; leave it",
    ),
    "nothing": (lambda d, x: d.blas.gemm(x), TypeError, "gemm() missing 1 required positional"),
    "x[0] = 1": (lambda d, x: assign(x), TypeError, "await device.fill(x[...], number)"),
    "(x + x)[0] = 1": (lambda d, x: assign(x + x), TypeError, "an Expression is not changed by"),
    "nothing in a family": (
        lambda d, x: d.blas.symv(),
        TypeError,
        "symv() missing 2 required positional arguments: 'a' and 'x'",
    ),
    "too much in a family": (
        lambda d, x: d.array.sum(x, 0, None, None, False, 0, True, 1),
        TypeError,
        "sum() takes from 2 to 8 positional arguments but 9 were given",
    ),
    "get([x, y])": (lambda d, x: d.get([x, x]), TypeError, "not list; call it for each of them"),
    "get((x, y))": (lambda d, x: d.get((x, x)), TypeError, "not tuple; call it for each of them"),
    "get in a recording": (recorded, AttributeError, "fetch its results after replay()"),
    "a sealed buffer": (sealed, Exception, "write to a copy: copy = await device.copy(ref)"),
    "a singular matrix": (singular, LinAlgError, "pivot 2 of the matrix is zero"),
    "an indefinite matrix": (
        indefinite,
        LinAlgError,
        "block of 2 by 2 of the matrix is not",
    ),
    "numpy.sort": (lambda d, x: np.sort(x), TypeError, "write: await device.array.sort(...)"),
    "numpy.einsum": (lambda d, x: np.einsum("ij->ji", x), TypeError, "device.tensor.einsum(...)"),
    "numpy.linalg.inv": (lambda d, x: np.linalg.inv(x), TypeError, "device.linalg.inv(...)"),
    "numpy.fft.fft": (lambda d, x: np.fft.fft(x), TypeError, "write: await device.fft.fft(...)"),
    "numpy.interp": (
        lambda d, x: np.interp(x, [0], [0]),
        TypeError,
        "write: await device.array.interp(...)",
    ),
    "numpy.kron": (lambda d, x: np.kron(x, x), TypeError, "write: await device.array.kron(...)"),
    "numpy.vander": (lambda d, x: np.vander(x[0]), TypeError, NOWHERE),
    "numpy.piecewise": (lambda d, x: np.piecewise(x, [x > 0], [1]), TypeError, NOWHERE),
}


@pytest.mark.parametrize(("call", "kind", "said"), MISTAKES.values(), ids=MISTAKES)
async def test_a_mistake_is_told_with_what_to_write(
    call: Callable[[Any, Any], Any], kind: type[Exception], said: str
) -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.eye(2))
        with pytest.raises(kind) as info:
            made = call(device, x)
            await made
        assert said in str(info.value)


async def test_functions_of_numpy_are_not_said_to_be_where_they_are_not() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.eye(2))
        for module in (np, np.linalg, np.fft):
            for name, function in vars(module).items():
                if not hasattr(function, "_implementation"):
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        function.__get__(x)()
                    except Exception as error:  # noqa: BLE001
                        _, said, call = str(error).partition("write: await device.")
                    else:
                        continue
                if said:
                    library, _, method = call.partition("(")[0].partition(".")
                    assert hasattr(getattr(device, library), method), (name, call)


UNOPENED: dict[str, tuple[Callable[[Any], Any], Any, type[Exception], str]] = {
    "a method": (lambda x: x.put(1), open_device, AttributeError, "as x, and then x.put"),
    "with": (lambda x: x.__enter__(), open_device, TypeError, "async with open_device(...) as x"),
    "a system": (lambda x: x.spawn(), partial(open_system, "s"), AttributeError, "open_system("),
}


@pytest.mark.parametrize(("call", "opening", "kind", "said"), UNOPENED.values(), ids=UNOPENED)
def test_something_unopened_is_told_to_be_opened(
    call: Callable[[Any], Any], opening: Callable[[], Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as info:
        call(opening())
    assert said in str(info.value)


async def test_something_unopened_is_not_awaited() -> None:
    with pytest.raises(TypeError, match=r"async with open_device\(\.\.\.\)"):
        await open_device()  # type: ignore[misc]


async def test_a_stage_is_told_to_be_async() -> None:
    not_async: Any = abs
    async with open_pipeline(not_async) as pipeline:
        with pytest.raises(TypeError, match=r"must be an async function.*write `async def`"):
            await pipeline(1)


async def test_a_pool_is_told_how_a_factory_of_a_function_is_written() -> None:
    async def double(x: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * x

    open_pool: Any = open_replica_pool
    with pytest.raises(TypeError, match="lambda: nullcontext"):
        async with open_pool([double]):
            pass
    with pytest.raises(TypeError, match="factories must be"):
        async with open_pool(3):
            pass
    async with open_pool([lambda: nullcontext(double), partial(nullcontext, double)]) as pool:
        assert await pool(3) == 6


@pytest.mark.parametrize("limit", [1, 2**20, 2**21 - 1])
async def test_a_limit_that_holds_no_slab_is_refused(limit: int) -> None:
    with pytest.raises(
        ValueError, match="memory_limit must be a whole number of at least 2097152, not"
    ):
        async with open_device(backend=BACKEND, memory_limit=limit):
            pass


def test_an_error_of_the_function_itself_is_left_alone() -> None:
    error = TypeError("of its own")
    clarify(error, lambda x: x, (1,), {})
    assert str(error) == "of its own"
