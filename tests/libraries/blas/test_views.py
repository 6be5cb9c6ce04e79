"""Products of views: some are passed to the vendor directly, others are copied first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef
from atomr_accel.ops import Submission
from atomr_accel.wire.copies import CopyStrided

from ...harness import on_shared, same_bits


def prepared(device: Device, a: GpuRef, b: GpuRef, **more: Any) -> Submission[GpuRef]:
    """Return the prepared submission of a product."""
    return device.requests.blas.gemm(a, b, **more).prepare(device.core.first_try)


@on_shared
async def test_strides_that_a_leading_dimension_expresses_cost_no_copy(device: Device) -> None:
    await device.blas.gemm(*[await device.zeros((4, 4), np.float32)] * 2)
    x = await device.put(np.arange(96, dtype=np.float32).reshape(8, 12))
    big = await device.zeros((3, 8, 24), np.float32)
    turned = prepared(device, x.T, x)
    assert not turned.before
    assert (turned.message.options.trans_a, turned.message.rows) == (1, (12, 12, 12))
    both = prepared(device, x.T, x.T, trans_b=True)
    assert (both.message.options.trans_a, both.message.options.trans_b) == (1, 0)
    part = prepared(device, x[:, :8], x[:, 4:])
    assert not part.before
    assert (part.message.sizes, part.message.rows) == ((8, 8, 8), (12, 12, 8))
    rows = prepared(device, x[::2], x.T[:, 1:2])
    assert not rows.before
    assert (rows.message.sizes, rows.message.rows) == ((4, 1, 12), (24, 1, 1))
    batch = prepared(device, big[:, :, :8], x[:, :12])
    assert (batch.message.batch, batch.message.sizes) == ((), (24, 12, 8))  # one tall matrix
    heads = big.reshape(3, 8, 2, 12).transpose(0, 2, 1, 3)
    scores = prepared(device, heads, heads.mT)
    assert not scores.before
    assert (scores.message.batch, scores.message.strides_a) == ((3, 2), (192, 12))
    out = prepared(device, x.T, x, out=(await device.zeros((12, 16), np.float32))[:, 2:14])
    assert not out.before
    assert not out.after
    assert (out.message.rows, out.message.strides_c) == ((12, 12, 16), ())


@on_shared
async def test_routines_take_transposes_as_they_are(device: Device) -> None:
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    x, v = await device.put(host), await device.put(np.arange(3, dtype=np.float32))
    requests = device.requests.blas
    await device.blas.gemv(x, await device.full(4, 1, np.float32))
    await device.copy(x.T)
    plain = requests.gemv(x.T, v).prepare(device.core.first_try)
    assert not plain.before
    assert not requests.geam(x.T, trans_a=True).prepare(device.core.first_try).before
    assert requests.gemv(x[:, ::2], v[:2]).prepare(device.core.first_try).before
    half = requests.trmv(x[:, :3].T, v).prepare(device.core.first_try)
    assert (half.before, half.message.options, half.message.steps[0]) == ((), (1, 1, 0), 4)
    product = await device.blas.gemv(x.T, v)
    assert same_bits(await device.get(product), host.T @ np.arange(3, dtype=np.float32))
    product = await device.blas.gemv(x.T, await device.full(4, 1, np.float32), trans=True)
    assert same_bits(await device.get(product), host.sum(1))


@on_shared
async def test_strides_that_no_leading_dimension_expresses_are_copied(device: Device) -> None:
    x = await device.put(np.arange(64, dtype=np.float32).reshape(8, 8))
    for view in (x[:, ::2][:, :4], x[::-1], x[0].broadcast_to((8, 8))):
        submission = prepared(device, view, x[: view.shape[1]])
        (copy,) = submission.before
        assert isinstance(copy.prepare(device.core.first_try).message, CopyStrided)
        assert not submission.after
    into = prepared(device, x, x, out=(await device.zeros((8, 8), np.float32)).T)
    assert (len(into.before), len(into.after)) == (1, 1)
    # A conjugated operand is transposed by it, too.
    z = await device.put(np.arange(64).reshape(8, 8) * 1j)
    assert prepared(device, z.T, z, trans_a=2).before
    assert not prepared(device, z.T, z, trans_a=1).before


slices = st.sampled_from([slice(None), slice(1, None), slice(None, None, 2), slice(None, None, -1)])
matrices = st.tuples(st.permutations(range(3)), st.integers(0, 3), slices, slices)
"""An order of axes, and which matrix to take of an array of three."""


@pytest.mark.slow
@given(matrices, matrices, st.sampled_from([1, 2]))
@on_shared
async def test_products_of_any_views_are_numpys(
    device: Device, one: tuple[Any, ...], other: tuple[Any, ...], step: int
) -> None:
    array = np.random.default_rng(0).integers(-4, 5, (4, 6, 5)).astype(np.float64)
    whole = await device.put(array)
    (left, a), (right, b) = [
        (array.transpose(order)[key], whole.transpose(*order)[key])
        for order, key in ((each[0], each[1:]) for each in (one, other))
    ]
    k = min(left.shape[1], right.shape[0])
    left, a, right, b = left[:, :k], a[:, :k], right[:k], b[:k]
    assert same_bits(await device.get(await device.blas.gemm(a, b)), left @ right)
    around = await device.zeros((left.shape[0], 2 * right.shape[1]))
    out = around[:, ::step][:, : right.shape[1]]
    assert await device.blas.gemm(a, b, out=out) is out
    assert same_bits(await device.get(out), left @ right)


@on_shared
async def test_a_product_into_what_it_reads_is_refused(device: Device) -> None:
    x = await device.zeros((8, 8), np.float32)
    with pytest.raises(ValueError, match="out shares memory with a"):
        await device.blas.gemm(x[:4, :4], x[4:, 4:], out=x[2:6, :4])
    with pytest.raises(ValueError, match="out is read-only"):
        await device.blas.gemm(x, x, out=(await device.zeros(8, np.float32)).broadcast_to((8, 8)))
    # Its columns are apart from those.
    await device.blas.gemm(x[:4, :4], x[:4, :4], out=x[:4, 4:])


@on_shared
async def test_fused_products_take_them_as_they_are_too(device: Device) -> None:
    rng = np.random.default_rng(1)
    host = rng.integers(-3, 4, (12, 20)).astype(np.float32)
    x = await device.put(host)
    a, b = x[:, :8].T, x[:, 9:20]
    bias = await device.put(rng.integers(-3, 4, 11).astype(np.float32))
    request = device.requests.blaslt.matmul(a, b, bias=bias, epilogue="relu_bias")
    await device.blaslt.matmul(x, x, trans_b=True)
    made = await device.blaslt.matmul(a, b, bias=bias, epilogue="relu_bias")
    expected = np.maximum(host[:, :8].T @ host[:, 9:] + await device.get(bias), 0)
    assert same_bits(await device.get(made), expected)
    submission = request.prepare(device.core.first_try)
    assert not submission.before
    around = await device.zeros((8, 16), np.float32)
    out = around[:, 3:14]
    assert await device.blaslt.matmul(a, b, out=out) is out
    assert same_bits(await device.get(out), host[:, :8].T @ host[:, 9:])
    assert not (await device.get(around))[:, :3].any()
    # Heads of attention: two leading dimensions, which one stride does not lead through.
    heads = (await device.put(rng.integers(-3, 4, (2, 3, 4, 8)).astype(np.float32))).swapaxes(1, 2)
    scores = await device.blas.matmul(heads, heads.mT)
    q = await device.get(heads)
    assert same_bits(await device.get(scores), q @ q.swapaxes(-1, -2))


@pytest.mark.parametrize("name", ["trmv", "trsv", "tbmv", "tbsv", "tpmv", "tpsv"])
async def test_results_that_are_made_have_no_gaps(device: Device, name: str) -> None:
    # The identity: whole, as a band of which the last row is the diagonal, packed.
    whole, band, packed = np.eye(3), np.array([[0.0] * 3, [1] * 3]), np.array([1.0, 0, 1, 0, 0, 1])
    matrix = {"r": whole, "b": band, "p": packed}[name[1]]
    a, x = await device.put(matrix), await device.put(np.arange(1, 7.0))
    y = await getattr(device.blas, name)(a, x[1::2])
    np.testing.assert_array_equal(await device.get(y), [2.0, 4, 6])


@on_shared
async def test_vectors_go_by_their_increments_when_they_are_views(device: Device) -> None:
    host = np.arange(48, dtype=np.float32).reshape(6, 8)
    m = await device.put(host)
    await device.blas.copy(m[0])
    requests = device.requests.blas

    def submission(request: Any) -> Any:
        return request.prepare(device.core.first_try)

    start = submission(requests.nrm2(m[:, 0])).message.places[0]
    for request, places, steps in (
        (requests.nrm2(m[:, 3]), (start + 12,), (8,)),
        (requests.nrm2(m[::-1, 3]), (start + 12,), (8,)),
        (requests.scal(2.0, m[4, 1::3]), (start + 132,), (3,)),
        (requests.axpy(m[::-2, 1], m[1, :6:2]), (start + 36, start + 32), (-16, 2)),
        (requests.swap(m[2, ::2], m[2, 1::2]), (start + 64, start + 68), (2, 2)),
    ):
        made = submission(request)
        assert not made.before + made.after
        assert made.message.places[: len(places)] == places
        assert made.message.steps[: len(steps)] == steps
    for request in (
        requests.amax(m[::-1, 0]),
        requests.dot(m[0, :1].broadcast_to((6,)), m[:, 1]),
    ):
        assert submission(request).before
    out = (await device.zeros((3, 5), np.float32))[:, 1:4]
    assert submission(requests.syrk(m[1:4, 2:7], out=out)).message.steps == (8, 5)


@on_shared
async def test_a_traced_routine_takes_other_views_of_the_same_layout(device: Device) -> None:
    host = np.arange(48, dtype=np.float64).reshape(6, 8)
    m = await device.put(host)
    for column in (3, 3, 3, 5, 3):
        length = await device.get(await device.blas.nrm2(m[:, column]))
        np.testing.assert_allclose(length, np.linalg.norm(host[:, column]))
    assert any(not isinstance(each, int) for each in device.blas.call_templates.known.values())


vectors = st.tuples(st.integers(0, 3), st.sampled_from([-3, -2, -1, 1, 2, 3]), st.booleans())
"""A row or column, the steps in it, and True for a column."""


@pytest.mark.slow
@given(vectors, vectors)
@on_shared
async def test_routines_on_views_of_one_buffer_write_their_elements_only(
    device: Device, one: tuple[int, int, bool], other: tuple[int, int, bool]
) -> None:
    host = np.arange(36.0).reshape(6, 6)
    m = await device.put(host)

    def part(array: Any, at: int, step: int, column: bool) -> Any:
        return (array[:, at] if column else array[at])[::step]

    x, y = part(m, *one), part(m, *other)
    n = min(x.size, y.size)
    x, y = x[:n], y[:n]
    expected_x, expected_y = part(host, *one)[:n], part(host, *other)[:n]
    if np.shares_memory(expected_x, expected_y):
        with pytest.raises(ValueError, match="shares memory"):
            await device.blas.swap(x, y)
        return
    assert await device.get(await device.blas.dot(x, y)) == expected_x @ expected_y
    await device.blas.swap(x, y)
    expected_x[...], expected_y[...] = expected_y.copy(), expected_x.copy()
    assert same_bits(await device.get(m), host)
    await device.blas.scal(2.0, x)
    expected_x *= 2
    assert same_bits(await device.get(m), host)
