"""``einsum`` against NumPy's, with products of matrices and kernels, and with contractions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef
from tests.harness import on_shared, sized

from ...harness import Shared
from .. import conformance
from .expressions import NUMPY, OPT_EINSUM, Expression, expressions, numbers, operands_for

pytestmark = conformance.MARKS

RNG = np.random.default_rng(5)


async def check(device: Device, subscripts: str, arrays: Sequence[Any], **options: Any) -> None:
    """Hold one expression against NumPy's, awaited and in a batch; numbers are whole and small."""
    expected = np.einsum(subscripts, *arrays)
    # Every other one lies in memory the other way round.
    refs = [
        (await device.put(array.T.copy())).T if at % 2 else await device.put(array)
        for at, array in enumerate(arrays)
    ]
    got = await device.tensor.einsum(subscripts, *refs, **options)
    assert got.contiguous
    async with device.batch() as batch:
        again = batch.tensor.einsum(subscripts, *refs, **options)
    for each in (got, again):
        result = await device.get(each)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
@settings(max_examples=sized(60, 1000))
@given(expressions(("float64", "complex64", "int32", "bool")))
@on_shared
async def test_any_expression(device: Device, given: Expression) -> None:
    await check(device, given.subscripts, given.operands)


@pytest.mark.slow
@settings(max_examples=sized(40, 1000))
@given(expressions(("float64", "complex64", "int32")), st.integers(0, 2**32))
@on_shared
async def test_any_expression_to_any_view(device: Device, given: Expression, seed: int) -> None:
    rng = np.random.default_rng(seed)
    expected = np.einsum(given.subscripts, *given.operands)
    refs = [await device.put(array) for array in given.operands]
    # Gaps, at ends of rows or between all elements, and axes in any order in memory.
    cuts = [int(rng.integers(3)) for _ in expected.shape]
    order = [*map(int, rng.permutation(expected.ndim))]
    whole = await device.full(tuple(2 * expected.shape[at] for at in order), 7, expected.dtype)
    out = whole.transpose(*map(order.index, range(len(order)))) if order else whole
    keys = [
        (slice(size, 2 * size), slice(size), slice(1, None, 2))[cut]
        for cut, size in zip(cuts, expected.shape, strict=True)
    ]
    out = out[tuple(keys)]
    await device.tensor.einsum(given.subscripts, *refs, out=out)
    np.testing.assert_array_equal(await device.get(out), expected)
    untouched = np.count_nonzero(await device.get(whole) == 7)
    assert untouched == whole.size - np.count_nonzero(expected != 7)


@on_shared
async def test_batches_whose_axes_are_apart(device: Device) -> None:
    a, b = numbers(RNG, (3, 4, 5, 2), "float64"), numbers(RNG, (4, 3, 2, 5), "float64")
    x, y = await device.put(a), await device.put(b)
    expected = np.einsum("abij,bajk->abik", a, b)
    out = (await device.full((3, 4, 5, 10), 7.0))[..., :5]
    await device.tensor.einsum("abij,bajk->abik", x, y, out=out)
    np.testing.assert_array_equal(await device.get(out), expected)
    one = x[:1].broadcast_to((3, 4, 5, 2))
    made = await device.tensor.einsum("abij,bajk->abik", one, y)
    np.testing.assert_array_equal(
        await device.get(made), np.einsum("abij,bajk->abik", np.broadcast_to(a[:1], a.shape), b)
    )


@pytest.fixture
def contracting(shared: Shared) -> Iterator[None]:
    """A device that seems to have cuTENSOR, so that nothing is copied for products."""

    async def seem(there: bool | None) -> None:
        shared.device.tensor._found.cutensor = there

    shared.run(partial(seem, there=True))
    yield
    shared.run(partial(seem, there=None))


@pytest.mark.slow
@pytest.mark.skipif(conformance.on_cuda(), reason="there it is as it is")
@pytest.mark.usefixtures("contracting")
@settings(max_examples=sized(40, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(expressions(("float64", "complex64")))
@on_shared
async def test_any_expression_with_contractions(device: Device, given: Expression) -> None:
    await check(device, given.subscripts, given.operands)


@pytest.mark.slow
@pytest.mark.skipif(conformance.on_cuda(), reason="there it is as it is")
@pytest.mark.usefixtures("contracting")
@on_shared
async def test_expressions_of_opt_einsum_with_contractions(device: Device) -> None:
    for subscripts in OPT_EINSUM[:: sized(3, 1)]:
        await check(device, subscripts, operands_for(subscripts, RNG, "float64"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@on_shared
async def test_expressions_of_opt_einsum(device: Device, dtype: str) -> None:
    for subscripts in OPT_EINSUM[:: sized(2, 1)]:
        await check(device, subscripts, operands_for(subscripts, RNG, dtype))


@on_shared
async def test_syntax_of_numpy(device: Device) -> None:
    for subscripts, shapes in NUMPY:
        await check(device, subscripts, [numbers(RNG, shape, "float64") for shape in shapes])


@pytest.mark.parametrize(
    "optimize",
    [False, True, "greedy", "optimal", ("greedy", 100), ["einsum_path", (1, 2), (0, 2), (0, 1)]],
    ids=str,
)
@on_shared
async def test_paths(device: Device, optimize: Any) -> None:
    shapes = [(2, 3), (3, 4), (4, 5), (5, 2)]
    arrays = [numbers(RNG, shape, "float64") for shape in shapes]
    await check(device, "ab,bc,cd,de->ae", arrays, optimize=optimize)


@pytest.mark.parametrize("path", [[(0, 1)], [(0, 3), (0, 1)], [(0, 0), (0, 1)]])
@on_shared
async def test_a_path_that_is_none(device: Device, path: Any) -> None:
    refs = [await device.zeros((2, 2)) for _ in range(3)]
    with pytest.raises(ValueError, match="is no path for 3 operands"):
        await device.tensor.einsum("ab,bc,cd", *refs, optimize=path)


@pytest.mark.parametrize(
    "options",
    [{"optimize": each} for each in (3, "foo", ("foo", 100), ("greedy", "x"), ["x"], [("x",)], 0.5)]
    + [{"casting": "x"}],
)
@pytest.mark.parametrize("count", [1, 2])
@on_shared
async def test_options_that_are_none(device: Device, options: dict[str, Any], count: int) -> None:
    refs = [await device.zeros((2, 2)) for _ in range(count)]
    (name,) = options
    with pytest.raises(ValueError, match=rf"{name} (is|must be)"):
        await device.tensor.einsum("ab,bc"[: 3 * count - 1], *refs, **options)


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (2, 3)])
@on_shared
async def test_a_diagonal_is_of_equal_sizes(device: Device, shape: tuple[int, int]) -> None:
    a = await device.zeros(shape)
    for subscripts in ("ii", "ii->i"):
        with pytest.raises(ValueError, match=r"operand 0 has . and . elements along its axes 'i'"):
            await device.tensor.einsum(subscripts, a)


@on_shared
async def test_operands_with_their_subscripts_behind_them(device: Device) -> None:
    a, b = (numbers(RNG, shape, "float32") for shape in ((5, 3, 4), (4, 2)))
    x, y = await device.put(a), await device.put(b)
    made = await device.tensor.einsum(x, [..., 0, 1], y, [1, 30], [30, ..., 0])
    np.testing.assert_array_equal(
        await device.get(made), np.einsum(a, [..., 0, 1], b, [1, 30], [30, ..., 0])
    )
    implicit = await device.tensor.einsum(x, [2, 1, 0], y, [0, 3])
    np.testing.assert_array_equal(await device.get(implicit), np.einsum(a, [2, 1, 0], b, [0, 3]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@on_shared
async def test_halves_are_summed_in_float32(device: Device, dtype: str) -> None:
    kind = conformance.dtype_of(dtype)
    a = RNG.uniform(0, 1, (3, 4000)).astype(kind)
    b = RNG.uniform(0, 1, (4000, 5)).astype(kind)
    x, y = await device.put(a), await device.put(b)
    wide = np.einsum("ij,jk->ik", a.astype(np.float64), b.astype(np.float64))
    eps = conformance.eps_of(kind)
    for subscripts, refs, expected in (
        ("ij,jk->ik", (x, y), wide),
        ("ij->i", (x,), a.astype(np.float64).sum(1)),
        ("ij,ij->i", (x, x), (a.astype(np.float64) ** 2).sum(1)),
    ):
        got = await device.get(await device.tensor.einsum(subscripts, *refs))
        assert got.dtype == kind
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=eps)


@on_shared
async def test_views_are_taken_as_they_are(device: Device) -> None:
    base = numbers(RNG, (6, 5, 8, 3), "float64")
    ref = await device.put(base)
    cases: list[tuple[str, list[Any]]] = [
        ("ij,jk->ik", [(0, slice(None), 2, slice(None)), (1, slice(0, 3), slice(2, 6), 0)]),
        ("ij,kj->ki", [(slice(None, None, -2), 1, 0), (slice(1, 4), slice(None), 3, 2)]),
        ("bij,bjk->kbi", [(slice(0, 4), 1), (slice(0, 4), slice(0, 3), slice(None, None, 3), 2)]),
    ]
    for subscripts, keys in cases:
        arrays = [base[key] for key in keys]
        if subscripts == "ij,kj->ki":
            arrays[1] = arrays[1][:, ::2]
            refs = [ref[keys[0]], ref[keys[1]][:, ::2]]
        else:
            refs = [ref[key] for key in keys]
        expected = np.einsum(subscripts, *arrays)
        got = await device.get(await device.tensor.einsum(subscripts, *refs))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,jk->ki", "ij,jk->i", "ij,jk->"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@on_shared
async def test_out(device: Device, subscripts: str, dtype: str) -> None:
    a, b = numbers(RNG, (3, 4), "float32"), numbers(RNG, (4, 5), "float32")
    expected = np.einsum(subscripts, a, b)
    x, y = await device.put(a), await device.put(b)
    whole = await device.full((2, *(2 * size for size in expected.shape)), 7, dtype)
    part: GpuRef = whole[(1, *(slice(None, None, -2) for _ in expected.shape))]
    assert await device.tensor.einsum(subscripts, x, y, out=part) is part
    np.testing.assert_array_equal(await device.get(part), expected.astype(dtype))
    assert (await device.get(whole[0]) == 7).all()


@on_shared
async def test_dtypes(device: Device) -> None:
    a, b = numbers(RNG, (3, 4), "int32"), numbers(RNG, (4, 5), "float32")
    x, y = await device.put(a), await device.put(b)
    made = await device.tensor.einsum("ij,jk", x, y)
    assert made.dtype == np.float64
    np.testing.assert_array_equal(await device.get(made), a @ b)
    narrow = await device.tensor.einsum("ij,jk", x, y, dtype=np.float32, casting="same_kind")
    np.testing.assert_array_equal(await device.get(narrow), (a @ b).astype(np.float32))
    with pytest.raises(TypeError, match=r"Cannot cast operand 0 from .* 'safe'"):
        await device.tensor.einsum("ij,jk", x, y, dtype=np.float32)
    with pytest.raises(TypeError, match="Cannot cast output"):
        await device.tensor.einsum("ij,jk", x, y, out=await device.zeros((3, 5), np.int64))


@on_shared
async def test_expressions_are_operands(device: Device) -> None:
    a = numbers(RNG, (3, 4), "float64")
    x = await device.put(a)
    made = await device.tensor.einsum("ij,kj->ik", x + 1, x)
    np.testing.assert_array_equal(await device.get(made), (a + 1) @ a.T)


@on_shared
async def test_a_recording(device: Device) -> None:
    a, b, c = (numbers(RNG, (4, 4), "float64") for _ in range(3))
    x, y = await device.put(a), await device.put(b)
    async with device.record() as recording:
        made = recording.tensor.einsum("ij,kj,kl->l", x, y, x)
    other = await device.put(c)
    for first in (x, other):
        await recording.replay(replace={x: first})
        host = await device.get(first)
        np.testing.assert_array_equal(
            await device.get(made), np.einsum("ij,kj,kl->l", host, b, host)
        )


@pytest.mark.parametrize(
    ("subscripts", "shapes", "said"),
    [
        ("ij,jk", [(2, 3)], "subscripts must be for 1 operands, not 2"),
        ("ij", [(2, 3, 4)], "operand 0 has 3 dimensions, but 2 subscripts"),
        ("i...j", [(2,)], "1 dimensions, but 2 subscripts beside"),
        (
            "ij,jk",
            [(2, 3), (4, 5)],
            "operand 1 must have 3 elements along 'j', as another axis of that",
        ),
        ("ij->ik", [(2, 3)], "'k', which no operand has"),
        ("ij->ii", [(2, 3)], "'i' more than once"),
        ("i.j", [(2, 3)], r"subscripts must be letters and '\.\.\.', ',' between operands and one"),
        ("......", [(2, 3)], "one '...' at most"),
        ("...i->i", [(2, 3)], "result's subscripts need it"),
        (
            "i->j->k",
            [(2,)],
            r"subscripts must be letters and '\.\.\.', ',' between operands and one",
        ),
        ("...i,...i", [(2, 3), (4, 3)], "axis -1 of '...'"),
    ],
)
@on_shared
async def test_subscripts_that_do_not_fit(
    device: Device, subscripts: str, shapes: Any, said: str
) -> None:
    refs = [await device.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError, match=said):
        await device.tensor.einsum(subscripts, *refs)


@on_shared
async def test_arguments_that_do_not_fit(device: Device) -> None:
    x = await device.zeros((3, 3))
    einsum = device.tensor.einsum
    with pytest.raises(TypeError, match="operand 1"):
        await einsum("ij,jk", x, np.eye(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="out shares memory with operand 0"):
        await einsum("ij,jk->ik", x, x, out=x)
    with pytest.raises(
        ValueError, match=r"out must have shape \(3, 3\), as einsum gives, not \(3,\)"
    ):
        await einsum("ij,jk->ik", x, x, out=await device.zeros((3,)))
    with pytest.raises(ValueError, match="not GpuRef alone"):
        await einsum(x)
    with pytest.raises(TypeError, match=r"whole number or '...'"):
        await einsum(x, [0.5, 1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="subscript 52 is not"):
        await einsum(x, [52, 1])
    with pytest.raises(TypeError, match="list of whole numbers"):
        await einsum(x, x)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("subscripts", ["i,i,i->i", "ij,j", "ij->ji", "ij,kj->ik", "ii->i"])
@pytest.mark.parametrize(
    ("given", "dtype"),
    [("f8", "?"), ("c16", "f8"), ("f8", "i4"), ("i8", "u1"), ("f8", "f2"), ("c16", "c8")],
)
@on_shared
async def test_conversions_that_are_not_safe(
    device: Device, subscripts: str, given: str, dtype: str
) -> None:
    terms = subscripts.partition("->")[0].split(",")
    shapes = [(3,) * len(term) for term in terms]
    arrays = [RNG.integers(0, 4, shape).astype(given) for shape in shapes]
    refs = [await device.put(each) for each in arrays]
    made = await device.tensor.einsum(subscripts, *refs, dtype=dtype, casting="unsafe")
    einsum: Any = np.einsum  # its stubs do not know this combination
    wanted = einsum(subscripts, *arrays, dtype=dtype, casting="unsafe")
    wanted = wanted.astype(dtype)  # NumPy's views keep the dtype
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(await device.get(made), wanted)
    kinds = np.dtype(given).kind + np.dtype(dtype).kind
    if kinds in ("f?", "cf", "fi"):
        with pytest.raises(TypeError, match="Cannot cast operand 0"):
            await device.tensor.einsum(subscripts, *refs, dtype=dtype, casting="same_kind")
