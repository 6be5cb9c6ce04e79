"""Ops of every library take expressions instead of refs, and give the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, open_device
from atomr_accel.arrays.expressions import Operand
from atomr_accel.ops import CallTemplate

from .conformance import MARKS
from .writers import ROWS, Row, put_all

pytestmark = MARKS

_ids = [f"{each.name}{'' if not at else f'-{at}'}" for at, each in enumerate(ROWS)]

FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "array.sort": lambda on, x: on.array.sort(x),
    "array.take": lambda on, x: on.array.take(x, [1, 2]),
    "blaslt.matmul": lambda on, x: on.blaslt.matmul(x, x),
    "cub.reduce": lambda on, x: on.cub.reduce(x),
    "cutlass.matmul": lambda on, x: on.cutlass.matmul(x, x, trans_b=True),
    "dnn.relu": lambda on, x: on.dnn.relu(x),
    "fft.rfft": lambda on, x: on.fft.rfft(x),
    "linalg.lu_factor": lambda on, x: on.linalg.lu_factor(x),
    "linalg.inv": lambda on, x: on.linalg.inv(x),
    "tensor.einsum": lambda on, x: on.tensor.einsum("ij,jk->ik", x, x),
}
"""Functions that return new buffers, of one square matrix."""


def expression_of(ref: GpuRef) -> Operand:
    """Return an expression with the values of a buffer."""
    return abs(ref) if ref.dtype.kind in "biu" else (ref * 1.0).astype(ref.dtype)


async def results_of(device: Device, each: Row, refs: dict[str, Any]) -> list[Any]:
    """Call a function; return its results and the buffers that it wrote."""
    library, _, name = each.name.partition(".")
    result = await each.call(getattr(getattr(device, library), name), refs, each.options)
    results = result if isinstance(result, tuple | list) else (result,)
    written = [refs[name] for name in each.written]
    return [await device.get(x) if isinstance(x, GpuRef) else x for x in (*results, *written)]


@pytest.mark.parametrize("each", ROWS, ids=_ids)
async def test_an_op_takes_an_expression(device: Device, each: Row) -> None:
    expected = await results_of(device, each, await put_all(device, each, np.random.default_rng(0)))
    inputs = [name for name in each.buffers if name not in each.written]
    if not inputs:
        pytest.skip("it writes all of its buffers")
    for _ in range(3):  # the second call makes a template, which the third one uses
        refs: dict[str, Any] = await put_all(device, each, np.random.default_rng(0))
        refs[inputs[0]] = expression_of(refs[inputs[0]])
        given = await results_of(device, each, refs)
        if each.name == "rng.choice":
            return  # it draws other numbers
        for one, other in zip(given, expected, strict=True):
            if isinstance(other, np.ndarray):
                np.testing.assert_allclose(
                    one.astype(other.dtype).astype("complex128"), other.astype("complex128"), 1e-5
                )


@pytest.mark.parametrize("name", FUNCTIONS)
async def test_an_expression_gives_what_its_value_gives(device: Device, name: str) -> None:
    function = FUNCTIONS[name]
    ref = await device.put(np.random.default_rng(0).uniform(1, 2, (4, 4)).astype(np.float32))
    value = await device.evaluate(ref * 2 + 1)

    async def fetched(results: Any) -> list[Any]:
        each = results if isinstance(results, tuple) else (results,)
        return [await device.get(x) for x in each]

    expected = await fetched(await function(device, value))
    for number in (2.0, 2.0, 2.0, 3.0):
        given = await fetched(await function(device, ref * number + (3.0 - number) * 1.0))
        if number == 2.0:
            for one, other in zip(given, expected, strict=True):
                np.testing.assert_array_equal(one, other)
    async with device.batch() as batch:
        collected = function(batch, ref * 2 + 1)
    async with device.record(ref) as recording:
        recorded = function(recording, ref * 2 + 1)
    await recording.replay()
    library = name.partition(".")[0]
    request = function(device.requests, ref * 2 + 1)
    answered = await getattr(device, library).ref.ask(request)
    for results in (collected, recorded, answered):
        for one, other in zip(await fetched(results), expected, strict=True):
            np.testing.assert_array_equal(one, other)


async def test_a_buffer_that_is_written_is_no_expression(device: Device) -> None:
    x = await device.put(np.ones((4, 4), np.float32))
    value: Any = x + 1
    with pytest.raises(TypeError, match=r"^out must be a GpuRef, not an Expression, because blas"):
        await device.blas.gemm(x, x, out=value)
    with pytest.raises(TypeError, match=r"^x must be a GpuRef, not an Expression, because rng"):
        await device.rng.default_rng(1).shuffle(value)
    call: Any = device.array.cumsum
    with pytest.raises(TypeError, match=r"^out must be a GpuRef, not an Expression, because array"):
        await call(x, 0, None, value)
    with pytest.raises(TypeError, match=r"^out must be a GpuRef, not an Expression, because blas"):
        async with device.batch() as batch:
            batch.blas.gemm(x, x, out=value)
    request = device.requests.blas.gemm(x, x, out=value)
    with pytest.raises(TypeError, match=r"^out must be a GpuRef, not an Expression, because blas"):
        await device.blas.ref.ask(request)
    np.testing.assert_array_equal(await device.get(x), 1)


async def test_get_computes_an_expression(device: Device) -> None:
    x = await device.put(np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(await device.get(x[:, ::2] + 1), [[1, 3], [4, 6]])
    out = np.empty((2, 3), np.float32)
    assert await device.get(x * 2, out=out) is out
    np.testing.assert_array_equal(out, 2 * np.arange(6).reshape(2, 3))
    async with device.batch() as batch:
        later = batch.get(x - 1)
    np.testing.assert_array_equal(later.value, np.arange(6).reshape(2, 3) - 1)


async def test_assignment_names_the_op_that_assigns(device: Device) -> None:
    x = await device.zeros(3)
    with pytest.raises(TypeError, match=r"device\.array\.setitem\(x, index, value\)"):
        x[0] = 1


@pytest.mark.parametrize("argument", ["expression", "view"])
async def test_a_staged_call_uses_a_template(argument: str) -> None:
    async with open_device(0, backend="cpu", isolation="thread") as device:
        x = await device.put(np.arange(16, dtype=np.float32).reshape(4, 4))
        host = await device.get(x)
        for number in range(4):
            value: Any = x[:, 1] + float(number) if argument == "expression" else x[::2, 1:]
            expected = host[:, 1] + number if argument == "expression" else host[::2, 1:]
            made = await (device.fft.fft(value) if value.ndim == 2 else device.blas.asum(value))
            right = np.fft.fft(expected) if value.ndim == 2 else abs(expected).sum()
            np.testing.assert_allclose(await device.get(made), right, rtol=1e-5)
        facade: Any = device.blas if argument == "expression" else device.fft
        assert any(type(known) is CallTemplate for known in facade.call_templates.known.values())
