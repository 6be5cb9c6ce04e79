"""Repeated calls have a template that is filled in from then on, with the same results."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefSealed, GpuRefStale, SparseRef
from atomr_accel.libraries.blas.checks import LANE
from atomr_accel.ops import CallTemplate, Request, Submission, UndeclaredAddress, signature
from atomr_accel.ops._templates import CallTemplates
from atomr_accel.testing import poison
from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.wire import Message

from ..harness import cpu_only, on_shared, opened, used_by

SIDE = 4


def templates_of(facade: Any) -> list[CallTemplate]:
    """Return the templates that a facade holds."""
    return [each for each in facade.call_templates.known.values() if isinstance(each, CallTemplate)]


def same(one: object, other: object) -> bool:
    """Return whether two calls with these arguments have the same signature."""
    return repr(one) == repr(other) and type(one) is type(other)


@on_shared
async def test_second_call_of_a_signature_makes_a_template(device: Device) -> None:
    before = len(templates_of(device.blas))
    a = await device.put(np.arange(12, dtype=np.float32).reshape(3, 4))
    b = await device.put(np.arange(28, dtype=np.float32).reshape(4, 7))
    exact = np.arange(12.0).reshape(3, 4) @ np.arange(28.0).reshape(4, 7)
    for count in (0, 1, 1):
        np.testing.assert_array_equal(await device.get(await device.blas.gemm(a, b)), exact)
        assert len(templates_of(device.blas)) - before == count


async def test_calls_that_wait_together_have_templates_later() -> None:
    """Sixteen tasks wait for the first plan at once; calls after them have templates."""
    async with opened() as device:
        x, scale = await device.zeros((2, SIDE)), await device.zeros(SIDE)
        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(device.dnn.layer_norm, x, scale, scale)
        for _ in range(16):
            await device.dnn.layer_norm(x, scale, scale)
        assert len(templates_of(device.dnn)) == 1


@pytest.mark.parametrize("batch", [False, True])
@on_shared
async def test_values_that_hold_buffers_are_taken_apart(device: Device, batch: bool) -> None:
    dense = [np.diag([1.0, 2, 3]), np.diag([4.0, 5, 6])]
    matrices = [await device.sparse.put(scipy.sparse.csr_array(each)) for each in dense]
    x = await device.put(np.arange(3.0))

    async def multiply(a: SparseRef, x: GpuRef, **options: Any) -> Any:
        if not batch:
            return await device.get(await device.sparse.matmul(a, x, **options))
        async with device.batch() as collected:
            made = collected.sparse.matmul(a, x, **options)
        return await device.get(made)

    before = len(templates_of(device.sparse))
    for at in (0, 0, 1, 0, 1):
        np.testing.assert_array_equal(await multiply(matrices[at], x), dense[at] @ np.arange(3.0))
    assert len(templates_of(device.sparse)) == before + 1
    assert (await multiply(matrices[0].T, x)).tolist() == [0, 2, 6]
    for _ in range(3):
        with pytest.raises(ValueError, match=r"shares memory with a\.data"):
            await multiply(matrices[0], x, out=matrices[0].data)
    squared = await multiply(matrices[1], matrices[1].data)
    assert squared.tolist() == [16, 25, 36]
    sealed = await device.sparse.put(scipy.sparse.csr_array(dense[0]), sealed=True)
    assert (await multiply(sealed, x)).tolist() == [0, 2, 6]
    await device.free(matrices[0].indices)
    with pytest.raises(GpuRefStale):
        await multiply(matrices[0], x)


@on_shared
async def test_results_may_be_views(device: Device) -> None:
    whole = await device.put(np.ones((32, 32), np.float16))
    a = await device.sparselt.compress(await device.sparselt.prune(whole))
    columns = await device.put(np.tile(np.arange(16, dtype=np.float16), (32, 1)))
    before = len(templates_of(device.sparselt))
    for count in (0, 1, 1):
        made = await device.sparselt.matmul(a, columns, order="F")
        assert made.T.contiguous
        assert (await device.get(made) == 16 * np.arange(16)).all()
        assert len(templates_of(device.sparselt)) - before == count


values = st.one_of(
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.none(),
    st.sampled_from(
        [
            0.0,
            -0.0,
            1.0,
            float("inf"),
            float("nan"),
            "1",
            "nan",
            np.float32,
            int,
            ml_dtypes.bfloat16,
        ]
    ),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from([np.dtype("float32"), np.dtype("float64")]),
)


@settings(max_examples=200)
@given(one=st.lists(values, max_size=3), other=st.lists(values, max_size=3))
@on_shared
async def test_a_signature_tells_all_that_differs(
    device: Device, one: list[Any], other: list[Any]
) -> None:
    keys = [signature((), device.core.memory, tuple(given), {}) for given in (one, other)]
    assert all(key is not None for key in keys)
    alike = len(one) == len(other) and all(map(same, one, other))
    first, second = (key and key[0] for key in keys)
    assert (first == second) == alike


@on_shared
async def test_unhashable_arguments_have_no_signature(device: Device) -> None:
    memory = device.core.memory
    whole = await device.zeros((SIDE, SIDE))
    freed = await device.zeros((SIDE, SIDE))
    await device.free(freed)
    classes = (CallTemplate, type("Float", (np.float32,), {}))
    for given_ in (
        *(freed, [whole], np.float32(1), (True,), (1.0,), object(), "x" * 1000),
        *classes,
    ):
        assert signature((), memory, (given_,), {}) is None
    plain = signature((), memory, (whole, whole), {"c": whole})
    apart = signature((), memory, (whole, await device.zeros((SIDE, SIDE))), {"c": whole})
    named = signature((), memory, (whole, whole), {"d": whole})
    assert plain is not None
    assert apart is not None
    assert named is not None
    assert len({plain[0], apart[0], named[0]}) == 3


KINDS = ("plain", "plain", "plain", "view", "sealed", "same", "out", "in place", "freed", "list")


@settings(max_examples=30)
@given(calls=st.lists(st.sampled_from(KINDS), min_size=3, max_size=20), batch=st.booleans())
@on_shared
async def test_the_nth_call_is_as_the_first(device: Device, calls: list[str], batch: bool) -> None:
    """In whatever order calls come that look alike, and some that do not."""
    error: type[Exception] | None
    x, y = (np.arange(SIDE * SIDE, dtype=np.float64).reshape(SIDE, SIDE) % n for n in (7, 5))
    tall = np.concatenate([x, y])
    a, b, both = await device.put(x), await device.put(y), await device.put(tall)
    sealed = await device.put(y, sealed=True)
    for kind in calls:
        out: GpuRef | None = None
        left: Any = a
        right: Any = b
        exact, error = x @ y, None
        if kind == "view":
            right = both[SIDE:]
        elif kind == "sealed":
            right, out, error = sealed, sealed, GpuRefSealed
        elif kind == "same":
            right, exact = a, x @ x
        elif kind == "out":
            out = await device.zeros((SIDE, SIDE))
        elif kind == "in place":
            out, error = b, ValueError
        elif kind == "freed":
            right, error = await device.put(y), GpuRefStale
            await device.free(right)
        elif kind == "list":
            left, error = [a], TypeError

        async def call(left: Any = left, right: Any = right, out: Any = out) -> GpuRef:
            if not batch:
                return await device.blas.gemm(left, right, out=out)
            async with device.batch() as collected:
                return collected.blas.gemm(left, right, out=out)

        if error is None:
            np.testing.assert_array_equal(await device.get(await call()), exact)
        else:
            with pytest.raises(error):
                await call()


VIEWS: dict[str, Callable[[Any], Any]] = {
    "first": lambda x: x[:SIDE, :SIDE],
    "second": lambda x: x[SIDE:, :SIDE],
    "right": lambda x: x[:SIDE, SIDE:],
    "turned": lambda x: x[:SIDE, :SIDE].T,
    "apart": lambda x: x[::2, :SIDE],
    "between": lambda x: x[1::2, :SIDE],
    "rows": lambda x: x.reshape(4 * SIDE, SIDE)[1 : SIDE + 1],
    "later rows": lambda x: x.reshape(4 * SIDE, SIDE)[2 * SIDE : 3 * SIDE],
}
"""Squares in a buffer of twice their side."""

squares = st.tuples(st.integers(0, 1), st.sampled_from([*VIEWS]))


@settings(max_examples=30)
@given(
    calls=st.lists(st.tuples(squares, squares, st.none() | squares), min_size=1, max_size=4),
    batch=st.booleans(),
)
@on_shared
async def test_calls_on_views_are_as_the_first(device: Device, calls: Any, batch: bool) -> None:
    """Whatever they share: the same again, with others in between, and on other buffers."""
    for seed in range(3):
        shape = (2 * SIDE, 2 * SIDE)
        arrays = [np.random.default_rng(seed + n).integers(-2, 3, shape) * 1.0 for n in (0, 9)]
        refs = [await device.put(array) for array in arrays]
        for left, right, out in calls:
            a, b = (VIEWS[name](arrays[n]) for n, name in (left, right))
            given_ = [VIEWS[name](refs[n]) for n, name in (left, right)]
            target = None if out is None else VIEWS[out[1]](arrays[out[0]])
            named = {} if out is None else {"out": VIEWS[out[1]](refs[out[0]])}
            shared = target is not None and any(np.shares_memory(target, each) for each in (a, b))

            async def call(given_: Any = given_, named: Any = named) -> GpuRef:
                if not batch:
                    return await device.blas.gemm(*given_, **named)
                async with device.batch() as collected:
                    return collected.blas.gemm(*given_, **named)

            expected = a @ b
            try:
                made = await call()
            except ValueError:
                assert shared
                continue
            # Where the result goes through scratch memory, it may share some.
            np.testing.assert_array_equal(await device.get(made), expected)
            if target is not None:
                target[...] = expected
        for array, ref in zip(arrays, refs, strict=True):
            np.testing.assert_array_equal(await device.get(ref), array)


async def test_views_have_templates() -> None:
    async with opened() as device:
        x = await device.put(np.ones((SIDE, 3 * SIDE), np.float32))
        for _ in range(3):
            for at in (0, SIDE):
                part = x[:, at : at + SIDE]
                y = await device.blas.gemm(part, part.T)
        assert len(templates_of(device.blas)) == 2
        np.testing.assert_array_equal(await device.get(y), np.full((SIDE, SIDE), SIDE))


@cpu_only
@on_shared
async def test_scalars_with_a_sign(device: Device) -> None:
    x = await device.put(np.ones((SIDE, SIDE)))
    for _ in range(3):
        for alpha in (0.0, -0.0):
            y = await device.get(await device.blaslt.matmul(x, x, alpha=alpha))
            assert np.signbit(y).all() == np.signbit(alpha)


class Tally(Message, frozen=True):
    """A message that does not declare its address."""

    where: int


@on_shared
async def test_undeclared_address_is_an_error_when_a_template_is_made(device: Device) -> None:
    def tally(_facade: object, x: GpuRef) -> Request[None]:
        sent: Submission[None] = Submission(Tally(x.block.address), (x.block,), ())
        return Request(LANE, "blas.tally", lambda _preparer: sent)

    templates, x = CallTemplates(), await device.zeros(SIDE)
    assert templates.find(tally, None, device.core, (x,), {}) is None
    for _ in range(2):
        with pytest.raises(UndeclaredAddress, match="Tally must declare all fields"):
            templates.find(tally, None, device.core, (x,), {})


@on_shared
async def test_numbers_that_look_like_places_are_sent_as_they_are(device: Device) -> None:
    wide = [1 << 62, (1 << 62) + 1, (1 << 63) - 1]
    x = await device.put(np.array(wide, np.uint64))
    for number in [number for number in wide for _ in range(3)]:
        made = await device.array.full_like(x, number)
        assert (await device.get(made)).tolist() == [number] * 3
        drawn = [device.rng.default_rng(number).integers(0, 1 << 62, 4) for _ in range(2)]
        one, other = [await device.get(await each) for each in drawn]
        np.testing.assert_array_equal(one, other)


async def test_settings_that_change_between_calls() -> None:
    async with opened() as device:
        x = await device.put(np.array([-1, 2], np.float32))
        for _ in range(3):
            await device.dnn.relu(x)
        before = device.statistics().caches["dnn.plans"]
        await device.dnn.relu(x)
        found = device.statistics().caches["dnn.plans"]
        assert found.hits == before.hits + 1  # filled-in calls count as well
        device.dnn.clear_plans()
        await device.dnn.relu(x)
        assert device.statistics().caches["dnn.plans"].misses == before.misses + 1


async def test_clear_caches_empties_all_caches_and_calls_go_on() -> None:
    async with opened() as device:
        x = await device.put(np.array([-1, 2], np.complex64))
        positive = await device.put(np.array([-1, 2], np.float32))
        for _ in range(2):
            for _ in range(3):
                await device.blas.gemm(m := await device.zeros((3, 3)), m)
                await device.dnn.relu(positive)
                await device.evaluate(positive * 2)
                made = await device.fft.fft(x)
            caches = device.statistics().caches
            for name in ("blas.templates", "device.templates", "dnn.plans", "fft.plans"):
                assert 0 < caches[name].entries < caches[name].limit, name
                assert caches[name].hits, name
                assert caches[name].misses, name
            assert all(name == each.name for name, each in caches.items())
            np.testing.assert_allclose(await device.get(made), [1, -3])
            device.clear_caches()
            cleared = device.statistics().caches
            assert not any(each.entries for each in cleared.values())
            assert cleared["fft.plans"].evictions > caches["fft.plans"].evictions


async def test_templates_end_with_their_generation() -> None:
    async with opened() as device:
        x = await device.put(np.eye(SIDE), sealed=True)
        for _ in range(2):
            for _ in range(3):
                y = await device.blas.gemm(x, x)
            assert [each.epoch for each in templates_of(device.blas)] == [device.core.memory.epoch]
            np.testing.assert_array_equal(await device.get(y), np.eye(SIDE))
            await poison(device)
            with pytest.raises(GpuRefStale):
                await device.blas.gemm(y, y)


async def test_a_batch_of_another_generation_takes_no_calls_by_templates() -> None:
    """Its lanes are gone, whatever the buffers are good for."""
    async with opened() as device:
        one = await device.zeros((SIDE, SIDE))
        await device.blas.gemm(one, one)  # the lane is open
        with pytest.raises(ContextPoisoned, match="the batch did not finish"):
            async with device.batch() as batch:
                await poison(device)
                x, out = await device.put(np.eye(SIDE)), await device.zeros((SIDE, SIDE))
                for _ in range(2):
                    async with device.batch() as later:
                        for _ in range(3):
                            later.blas.gemm(x, x, out=out)
                batch.blas.gemm(x, x, out=out)


async def test_there_are_only_so_many_and_none_holds_a_buffer() -> None:
    async with opened() as device:
        device.blas.call_templates.known.limit = 8
        before = used_by(device)
        gc.disable()
        try:
            for size in range(1, 20):
                x = await device.zeros((size, size))
                for _ in range(3):
                    await device.blas.gemm(x, x)
            async with device.batch() as batch:
                for _ in range(3):
                    batch.blas.gemm(x, x)
            del x, batch
            assert len(device.blas.call_templates.known) == 8
            assert used_by(device) == before
        finally:
            gc.enable()


@on_shared
async def test_draws_differ_however_often_they_are_asked_for(device: Device) -> None:
    generator = device.rng.default_rng(seed=1)
    draws = [await device.get(await generator.normal(size=(SIDE,))) for _ in range(4)]
    assert len({draw.tobytes() for draw in draws}) == 4


@pytest.mark.parametrize(
    "call",
    [
        lambda batch, x: batch.blaslt.matmul(x, x, epilogue="gelu"),
        lambda batch, x: batch.cub.sort(x.reshape(-1)),
        lambda batch, x: batch.dnn.relu(x),
        lambda batch, x: batch.array.flip(x),
        lambda batch, x: batch.blas.gemm_grouped(x, x[None], [SIDE]),
    ],
    ids=["blaslt", "cub", "dnn", "array", "blas"],
)
@on_shared
async def test_template_made_in_a_batch_does_not_keep_the_batch(
    device: Device, call: Callable[[Any, GpuRef], GpuRef]
) -> None:
    """A batch may hold memory, such as scratch."""
    x = await device.zeros((SIDE, SIDE), np.float32)
    batches = []
    for _ in range(3):
        async with device.batch() as batch:
            call(batch, x)
        batches.append(weakref.ref(batch))
    del batch
    collect_garbage()
    assert [one() for one in batches] == [None] * 3
