"""Operations of cuTENSOR: destinations of results, batches, recordings, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from tests.harness import on_shared

from ..conformance import MARKS, on_cuda

pytestmark = MARKS
if on_cuda():
    pytest.importorskip("cutensor")

RNG = np.random.default_rng(8)


@on_shared
async def test_out_may_be_what_is_added(device: Device) -> None:
    a, b, c = (RNG.uniform(size=(4, 4)) for _ in range(3))
    x, y, z = [await device.put(each) for each in (a, b, c)]
    made = await device.tensor.contract(x, "ik", y, "kj", "ij", c=z, out=z, alpha=2, beta=-1)
    assert made is z
    expected = 2 * a @ b - c
    np.testing.assert_allclose(await device.get(z), expected)
    await device.tensor.contract(x, "ik", y, "kj", "ij", out=z, beta=1)
    np.testing.assert_allclose(await device.get(z), expected + a @ b)
    await device.tensor.elementwise_binary(x, "ij", z, "ij", "multiply", out=z)
    np.testing.assert_allclose(await device.get(z), a * (expected + a @ b))


@on_shared
async def test_addend_may_have_another_layout_than_the_result(device: Device) -> None:
    a, c = RNG.uniform(size=(3, 4, 5)), RNG.uniform(size=(8, 3))
    x, z = await device.put(a), await device.put(c)
    added = z[::2].T  # 3 rows, 4 columns
    made = await device.tensor.reduce(x, "ijk", "ij", c=added, beta=2)
    np.testing.assert_allclose(await device.get(made), a.sum(2) + 2 * c[::2].T)
    target = (await device.full((3, 10), 7.0))[:, 1:9:2]
    await device.tensor.reduce(x, "ijk", "ij", c=added, beta=2, out=target)
    np.testing.assert_allclose(await device.get(target), a.sum(2) + 2 * c[::2].T)
    joined = await device.tensor.elementwise_binary(x, "ijk", x.T, "kji", out=None)
    np.testing.assert_allclose(await device.get(joined), 2 * a.T)


@on_shared
async def test_views_that_go_backwards_are_copied_first(device: Device) -> None:
    a = RNG.uniform(size=(4, 5))
    x = await device.put(a)
    made = await device.tensor.permute(x[::-1, ::2], "ij", "ji")
    np.testing.assert_allclose(await device.get(made), a[::-1, ::2].T)
    repeated = await device.tensor.reduce(x[0].broadcast_to((3, 5)), "ij", "j")
    np.testing.assert_allclose(await device.get(repeated), 3 * a[0])


@on_shared
async def test_modes_are_any_sequence(device: Device) -> None:
    a = RNG.uniform(size=(4, 5))
    x = await device.put(a)
    made = await device.tensor.contract(x, ("row", 7), x, ["other", 7], ("other", "row"))
    np.testing.assert_allclose(await device.get(made), a @ a.T)


@on_shared
async def test_batches_and_recordings(device: Device) -> None:
    a, b = RNG.uniform(size=(4, 4)), RNG.uniform(size=(4, 4))
    x, y = await device.put(a), await device.put(b)
    async with device.batch() as batch:
        first = batch.tensor.contract(x, "ik", y, "kj", "ij")
        second = batch.tensor.reduce(first, "ij", "j", "max")
    np.testing.assert_allclose(await device.get(second), (a @ b).max(0))
    async with device.record() as recording:
        made = recording.tensor.elementwise_trinary(x, "ij", y, "ji", x, "ji", "multiply")
    for other in (x, y):
        await recording.replay(replace={x: other})
        host = await device.get(other)
        np.testing.assert_allclose(await device.get(made), host.T * b + host)


def _calls(tensor: Any, x: Any, half: Any) -> dict[str, Any]:
    contract, reduce = tensor.contract, tensor.reduce
    return {
        r"modes_a must have a mode for each axis of shape \(3, 3\), not 1": lambda: contract(
            x, "i", x, "jk", "ik"
        ),
        "modes_b has mode 'j' more than once": lambda: contract(x, "ij", x, "jj", "i"),
        "the result has mode 'z'": lambda: contract(x, "ij", x, "jk", "iz"),
        "modes has mode 'i' more": lambda: contract(x, "ij", x, "jk", "ii"),
        "mode 'i' of modes_b must have 3 elements, as in another array, not 2": lambda: contract(
            x, "ij", x[:2], "ik", "jk"
        ),
        "b must have the dtype of a": lambda: contract(x, "ij", half, "jk", "ik"),
        "shares memory with a": lambda: contract(x, "ij", x, "jk", "ik", out=x),
        r"out must have shape \(3,\), not \(2,\)": lambda: reduce(x, "ij", "j", out=x[0, :2]),
        "beta scales": lambda: reduce(x, "ij", "j", beta=2.0),
        "op must be one of 'sum', 'prod', 'max', 'min', not 'mean'": lambda: reduce(
            x, "ij", "j", "mean"
        ),
        "operator for float32 must be one of identity, sqrt, relu, conjugate,": lambda: reduce(
            x, "ij", "j", op_a="cube"
        ),
        "operator for float32 must be one of identity, conjugate, not 'tanh'": lambda: contract(
            x, "ij", x, "jk", "ik", op_a="tanh"
        ),
        "operator must be one of add, multiply, maximum, minimum, not": lambda: (
            tensor.elementwise_binary(x, "ij", x, "ij", "subtract")
        ),
        "not all there are": lambda: tensor.permute(x, "ij", "j"),
        "compute_type for float32 must be one of 32F, TF32, 3XTF32, 16F, 16BF,": lambda: contract(
            x, "ij", x, "jk", "ik", compute_type="64F"
        ),
        "without elements": lambda: reduce(x[:0], "ij", "j"),
        "string or a sequence": lambda: reduce(x, 5, "j"),
    }


@pytest.mark.parametrize("said", [*_calls(type("T", (), {"contract": 0, "reduce": 0}), 0, 0)])
@on_shared
async def test_arguments_that_do_not_fit(device: Device, said: str) -> None:
    x = await device.zeros((3, 3), np.float32)
    half = await device.zeros((3, 3), np.float16)
    with pytest.raises((TypeError, ValueError), match=said):
        await _calls(device.tensor, x, half)[said]()


@on_shared
async def test_real_numbers_are_their_conjugates(device: Device) -> None:
    x = await device.put(np.arange(9.0).reshape(3, 3))
    made = await device.tensor.contract(x, "ij", x, "jk", "ik", op_b="conjugate")
    np.testing.assert_array_equal(
        await device.get(made), await device.get(await device.blas.gemm(x, x))
    )


@on_shared
async def test_dtypes_that_are_none_of_cutensors(device: Device) -> None:
    x = await device.zeros((3, 3), np.int32)
    with pytest.raises(
        TypeError, match="a must have dtype float16, bfloat16, float32, float64, complex64,"
    ):
        await device.tensor.permute(x, "ij", "ji")
    z = await device.zeros((3, 3), np.complex64)
    with pytest.raises(ValueError, match="operator for complex64 must need no order, not maximum"):
        await device.tensor.reduce(z, "ij", "j", "max")
    with pytest.raises(
        ValueError, match="operator for complex64 must be one of identity, conjugate, not"
    ):
        await device.tensor.permute(z, "ij", "ji", op_a="exp")
