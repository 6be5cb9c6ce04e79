"""Recordings: collected once, replayed often, with the same or with other buffers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import GpuRefSealed, GpuRefStale, Unsupported
from atomr_accel.libraries.nvrtc.host._modules import LaneModules
from atomr_accel.testing import poison
from atomr_accel.testing.garbage import collect_garbage

from ..harness import (
    ON_CUDA,
    cancelled_at,
    cpu_only,
    needs_nvrtc,
    on_shared,
    opened,
    settled,
    used_by,
)
from .programs import ADD, REFUSED, adder, held, launched

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device, GpuRef
    from atomr_accel.arrays.expressions import Operand
    from atomr_accel.lanes import Isolation

    from ..harness import Gate

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests


def whole(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


@settings(max_examples=20)
@given(
    steps=st.lists(st.sampled_from(["left", "right", "add"]), min_size=1, max_size=12),
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=5),
)
@on_shared
async def test_a_replay_is_what_the_calls_are(
    device: Device, steps: list[str], seeds: list[int]
) -> None:
    kernel = await adder(device)
    weights = np.sign(whole(1, 2, 2))
    x, w = await device.put(whole(0, 2, 2)), await device.put(weights)
    async with device.record(x) as recorded:
        y = recorded.blas.gemm(x, w)
        for step in steps:
            if step == "add":
                recorded.launch(kernel, 1, 4, y, 1.0)
            else:
                y = recorded.blas.gemm(*((y, w) if step == "right" else (w, y)))
    for seed in seeds:
        host = whole(seed, 2, 2)
        await recorded.replay(await device.put(host))
        expected = host @ weights
        for step in steps:
            if step == "add":
                expected = expected + 1
            else:
                expected = expected @ weights if step == "right" else weights @ expected
        assert np.array_equal(await device.get(y), expected)


@on_shared
async def test_recording_executes_nothing(device: Device) -> None:
    kernel, x = await adder(device), await device.zeros(4, np.float32)
    before = device.statistics().in_flight
    async with device.record() as recorded:
        recorded.launch(kernel, 1, 4, x, 1.0)
    assert device.statistics().in_flight <= before  # what a test before has dropped may go
    assert (await device.get(x)).tolist() == [0] * 4
    for _ in range(3):
        await recorded.replay()
    assert (await device.get(x)).tolist() == [3] * 4


@on_shared
async def test_only_buffers_are_inputs(device: Device) -> None:
    x = await device.zeros(4, np.float32)
    for wrong in (3, None, np.zeros(4), [x]):
        with pytest.raises(TypeError, match="input 1 of record"):
            device.record(x, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", ["launched", "recorded", "in a batch"])
async def test_a_kernel_in_a_recording_and_beside_it(first: str) -> None:
    async with opened(isolation="thread") as device:
        kernel, x = await adder(device), await device.zeros(4, np.float32)
        if first == "launched":
            await kernel.launch(1, 4, x, 1.0)
        elif first == "in a batch":
            async with device.batch() as batch:
                batch.launch(kernel, 1, 4, x, 1.0)
        async with device.record() as recorded:
            recorded.launch(kernel, 1, 4, x, 10.0)
            recorded.launch(kernel, 1, 4, x, 10.0)
        await recorded.replay()
        await kernel.launch(1, 4, x, 100.0)
        expected = 120 if first == "recorded" else 121
        assert (await device.get(x)).tolist() == [expected] * 4


@on_shared
async def test_recorded_draws_repeat_and_what_is_drawn_beside_them_does_not(device: Device) -> None:
    generator = device.rng.default_rng(7)
    noise = await generator.normal(size=8)
    before = generator.state
    async with device.record(noise) as replayed:
        own = replayed.rng.normal(size=8)
        mine = replayed.using(generator).normal(size=8)
        copied = replayed.blas.axpy(noise, replayed.rng.default_rng(3).normal(size=8))
    after = generator.state
    assert after["position"] > before["position"]  # drawn from once, when it was recorded
    seen = []
    for _ in range(2):
        await replayed.replay()
        seen.append([await device.get(ref) for ref in (own, mine, copied)])
        assert generator.state == after
        await generator.normal(out=noise)
        after = generator.state
    for once, again in zip(seen[0][:2], seen[1][:2], strict=True):
        assert np.array_equal(once, again)
    assert not np.array_equal(seen[0][2], seen[1][2])  # it read other noise


@on_shared
@pytest.mark.parametrize("seen", [lambda x: x, lambda x: x.T, lambda x: x[1:, ::2]])
async def test_repeated_argument_is_one_buffer(
    device: Device, seen: Callable[[GpuRef], GpuRef]
) -> None:
    x, z, w = [await device.full((4, 4), value, np.float32) for value in (1, 3, 5)]
    async with device.record(seen(x), seen(x)) as recorded:
        y = recorded.evaluate(seen(x) * 2)
    await recorded.replay(seen(z), seen(z))
    assert (await device.get(y) == 6).all()
    await recorded.replay(seen(w))
    assert (await device.get(y) == 10).all()
    await recorded.replay(replace={seen(x): seen(z)})
    assert (await device.get(y) == 6).all()
    with pytest.raises(ValueError, match="is replaced twice"):
        await recorded.replay(seen(z), seen(w))
    with pytest.raises(ValueError, match="is replaced twice"):
        await recorded.replay(seen(z), replace={seen(x): seen(w)})
    with pytest.raises(ValueError, match="is no buffer that this recording was made with"):
        await recorded.replay(replace={z: w})


@on_shared
async def test_buffers_that_are_written_can_be_replaced_too(device: Device) -> None:
    kernel = await adder(device)
    x, y = await device.zeros(4, np.float32), await device.full(4, 10, np.float32)
    async with device.record(x) as recorded:
        recorded.launch(kernel, 1, 4, x, 1.0)
    await recorded.replay()
    await recorded.replay(y)
    await recorded.replay(replace={x: y})
    await recorded.replay()
    assert (await device.get(x)).tolist() == [2] * 4
    assert (await device.get(y)).tolist() == [12] * 4


@on_shared
async def test_replays_keep_their_place_among_other_ops(device: Device, gate: Gate) -> None:
    """A replay is an op as any other: earlier writes come before its reads."""
    hold, x, recorded = await held(device, gate)
    got: list[float] = []

    async def get() -> None:
        got.append(float((await device.get(x))[1]))

    async with trio.open_nursery() as nursery:
        for call in (lambda: hold(x), recorded.replay, get, recorded.replay):
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
        gate.open()
    assert got == [2]
    assert (await device.get(x)).tolist() == [5, 3, 3, 3]


@on_shared
async def test_replays_at_once_with_other_inputs(device: Device) -> None:
    kernel = await adder(device)
    refs = [await device.full(4, n, np.float32) for n in range(8)]
    async with device.record(refs[0]) as recorded:
        recorded.launch(kernel, 1, 4, refs[0], 0.5)
    async with trio.open_nursery() as nursery:
        for ref in refs:
            nursery.start_soon(recorded.replay, ref)
    assert [(await device.get(ref))[0] for ref in refs] == [n + 0.5 for n in range(8)]


@pytest.mark.parametrize("streams", ["single", "pooled", "per_actor"])
async def test_recording_beside_other_lanes(streams: str) -> None:
    """Other lanes execute their ops meanwhile, and the program does not contain them."""
    async with opened(isolation="thread", streams=streams, stream_pool=2) as device:
        kernel = await adder(device)
        x = await device.zeros(4, np.float32)
        a = await device.put(np.full((2, 2), 2, np.float32))
        await kernel.launch(1, 4, x, 0.0)
        inputs = [await device.zeros(4, np.float32) for _ in range(10)]
        async with device.record(inputs[0]) as recorded:
            for _ in range(5):
                recorded.launch(kernel, 1, 4, inputs[0], 1.0)

        async def others() -> None:
            for _ in range(40):
                await kernel.launch(1, 4, x, 1.0)
                product = await device.blas.gemm(a, a)
                assert (await device.get(product)).tolist() == [[8, 8], [8, 8]]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            for ref in inputs:  # recorded anew each time
                await recorded.replay(ref)
        assert (await device.get(x)).tolist() == [40] * 4
        assert [(await device.get(ref))[0] for ref in inputs] == [5] * 10


@on_shared
async def test_results_have_no_content_before_a_replay(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    async with device.record(x) as recorded:
        y = recorded.blas.gemm(x, x)
        scratch = recorded.empty(4, np.float32)
    none = r"has no content yet.*await the recording's replay\(\) first"
    assert not y.is_stale
    for call in (
        lambda: device.get(y),
        lambda: device.get(y[1:]),
        lambda: device.blas.gemm(x, y),
        lambda: device.seal(y),
        lambda: device.copy(y, x),
        lambda: recorded.replay(y),
    ):
        with pytest.raises(RuntimeError, match=none):
            await call()
    async with device.batch() as batch:
        with pytest.raises(RuntimeError, match="b " + none):
            batch.blas.gemm(x, y)
    await device.get(scratch)  # nothing in the program writes it
    await recorded.replay()
    assert np.array_equal(await device.get(y), np.eye(2))
    await recorded.replay(y)
    await device.free(y)
    with pytest.raises(GpuRefStale, match="was freed"):
        await device.get(y)


@on_shared
async def test_a_recording_may_read_what_another_makes_before_that_was_replayed(
    device: Device,
) -> None:
    a, b = [await device.put(np.full((2, 2), value, np.float32)) for value in (2, 3)]
    flag = await device.put(np.ones(1, np.int32))
    async with device.record(a) as inner:
        made = inner.blas.gemm(a, a)
        go = inner.copy(flag)
    async with device.record(b) as reader:
        product = reader.blas.gemm(made, b)
    async with device.record(a) as outer:
        outer.call(inner, a)
        with outer.when(go):
            summed = outer.blas.gemm(made, a)
        outer.call(reader, made)
    with pytest.raises(RuntimeError, match="has no content yet"):
        await reader.replay()
    await outer.replay(b)
    found = [(await device.get(ref))[0, 0] for ref in (made, summed, product)]
    assert found == [18, 108, 648]
    await inner.replay()
    await reader.replay()
    assert [(await device.get(ref))[0, 0] for ref in (made, product)] == [8, 48]


@on_shared
async def test_a_replay_that_was_withdrawn_or_failed_gives_no_content(device: Device) -> None:
    good, bad = await adder(device), await device.nvrtc.compile(ADD, "add", cpu=Unreadable())
    x, cells = await device.put(np.eye(2, dtype=np.float32)), await device.zeros(4, np.float32)
    for kernel in (good, bad):
        async with device.record(x) as recorded:
            y = recorded.blas.gemm(x, x)
            blocks, options = launched(fail=kernel is bad)
            recorded.launch(kernel, blocks, 4, cells, 1.0, **options)
        with trio.CancelScope() as scope:
            scope.cancel()
            await recorded.replay()
        with pytest.raises(RuntimeError, match="has no content yet"):
            await device.get(y)
        if kernel is good:
            await recorded.replay()
            await device.get(y)
            continue
        with pytest.raises(REFUSED):
            await recorded.replay()
        with pytest.raises(RuntimeError, match="has no content yet"):
            await device.get(y)


@needs_nvrtc
@on_shared
async def test_recorded_call_error_names_the_call(device: Device) -> None:
    kernel = await adder(device)
    x, freed = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
    await device.free(freed)
    async with opened() as another, device.record(x) as recorded:
        elsewhere = await another.zeros(4, np.float32)
        for wrong, error in ((freed, GpuRefStale), (elsewhere, ValueError), (3, TypeError)):
            with pytest.raises(error, match=r"argument 0 \('.*'\)"):
                recorded.launch(kernel, 1, 4, wrong, 1.0)
            with pytest.raises(error, match=r"^x (must be|was freed)"):
                recorded.dnn.relu(wrong)  # type: ignore[arg-type]
            with pytest.raises(error, match=r"^flag "), recorded.when(wrong):  # type: ignore[arg-type]
                pass
    with pytest.raises(GpuRefStale, match="input 1 of record was freed"):
        async with device.record(x, freed):
            pass


# --- errors --------------------------------------------------------------------------------


@on_shared
async def test_replay_refuses_invalid_replacements(device: Device) -> None:
    kernel = await adder(device)
    x, other = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
    async with device.record(x) as recorded:
        recorded.launch(kernel, 1, 4, x, 1.0)
        with pytest.raises(RuntimeError, match="after its block"):
            await recorded.replay()
    with pytest.raises(RuntimeError, match="has ended"):
        recorded.launch(kernel, 1, 4, x, 1.0)
    with pytest.raises(ValueError, match="has not the shape"):
        await recorded.replay(await device.zeros(5, np.float32))
    with pytest.raises(TypeError, match="has not the dtype"):
        await recorded.replay(await device.zeros(4, np.float64))
    with pytest.raises(ValueError, match="replay must be given 1 inputs, as were recorded, not 2"):
        await recorded.replay(x, other)
    with pytest.raises(ValueError, match="no buffer that this recording"):
        await recorded.replay(replace={other: x})
    with pytest.raises(GpuRefSealed):
        await recorded.replay(await device.put(np.zeros(4, np.float32), sealed=True))
    await device.free(other)
    with pytest.raises(GpuRefStale):
        await recorded.replay(other)
    await device.free(x)
    with pytest.raises(GpuRefStale):
        await recorded.replay()
    await recorded.replay(await device.zeros(4, np.float32))


class Unreadable:
    """A function that the host cannot load."""

    def __reduce__(self) -> Any:
        return _refuse, ()

    def __call__(self, x: Any, value: Any) -> None:
        raise NotImplementedError


def _refuse() -> None:
    raise LookupError("this function was not to be loaded")


@on_shared
async def test_a_recording_that_cannot_be_made_says_why_each_time(device: Device) -> None:
    kernel = await device.nvrtc.compile(ADD, "add", cpu=Unreadable())
    x = await device.zeros(4, np.float32)
    async with device.record() as recorded:
        blocks, options = launched(fail=True)
        recorded.launch(kernel, blocks, 4, x, 1.0, **options)
    for _ in range(2):
        with pytest.raises(REFUSED, match=None if ON_CUDA else "was not to be loaded"):
            await recorded.replay()
    good = await adder(device)
    async with device.record() as recorded:
        recorded.launch(good, 1, 4, x, 1.0)
    await recorded.replay()
    assert (await device.get(x)).tolist() == [1] * 4


def not_loaded(*_args: object) -> None:
    raise LookupError("this function was not to be loaded")


@cpu_only
async def test_a_recording_that_fails_for_other_buffers_leaves_the_first_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(isolation="thread") as device:
        kernel = await adder(device)
        x, y = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
        async with device.record(x) as recorded:
            recorded.launch(kernel, 1, 4, x, 1.0)
        await recorded.replay()
        with monkeypatch.context() as patch:
            patch.setattr(LaneModules, "load", not_loaded)
            with pytest.raises(LookupError, match="was not to be loaded"):
                await recorded.replay(y)
        assert (await device.get(x))[0] == 1
        await recorded.replay(y)
        assert ((await device.get(x))[0], (await device.get(y))[0]) == (1, 1)


@on_shared
async def test_cancelling_a_replay_at_every_checkpoint(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    step, more = 1, True
    while more:
        async with device.record(x) as recorded:
            y = recorded.blas.gemm(x, x)
        more = await cancelled_at(step, recorded.replay)
        await recorded.replay()
        assert np.array_equal(await device.get(y), np.eye(2))
        step += 1
    assert step > 3


@on_shared
async def test_a_recording_that_is_dropped_leaves_nothing(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    forgotten = 0
    for _ in range(5):
        async with device.record(x) as recorded:
            y = recorded.blas.gemm(x, x)
        await recorded.replay()
        number = recorded.number
        del recorded, y
        collect_garbage()
        async with device.record(x) as other:
            other.blas.gemm(x, x)
        await other.replay()  # sends what has been noted
        port = await device.core.open_lane(_recordings())
        with pytest.raises(KeyError, match=str(number)):
            await device.core.submit(port, "dot", _describe(number)).wait()
        forgotten += 1
    assert forgotten == 5
    await trio.lowlevel.checkpoint()  # until then trio holds the last error, and that this frame


def _recordings() -> Any:
    from atomr_accel.device.batches.replaying import RECORDINGS

    return RECORDINGS


def _describe(number: int) -> Any:
    from atomr_accel.libraries.recordings.wire.messages import Describe

    return Describe(number)


# --- what it looks like --------------------------------------------------------------------


@on_shared
async def test_a_recording_can_be_looked_at(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    async with device.record(x) as recorded:
        recorded.blas.gemm(recorded.blas.gemm(x, x), x)
    with pytest.raises(Unsupported, match="before its first replay"):
        await recorded.dot()
    await recorded.replay()
    text = await recorded.dot()
    assert text.startswith("digraph")
    if not ON_CUDA:
        assert text.count('label="blas.gemm"') == 2


# --- buffers that expressions hold --------------------------------------------------------


@on_shared
async def test_replay_replaces_what_expressions_read(device: Device) -> None:
    """Replay replaces refs in parts of expressions, in views and in a function's closure."""
    recorded, other = np.arange(6.0), np.arange(6.0)[::-1] ** 2
    x, w = await device.put(recorded), await device.put(np.full(6, 10.0), sealed=True)

    @device.fuse
    def around(a: GpuRef) -> Operand:
        return a - x[::2]

    async with device.record(x) as taken:
        total = taken.evaluate(x * 2 + w)
        turned = taken.evaluate(total[::-1] + x[::-1])
        summed = taken.array.sum(2**-x)
        where = taken.array.where(x > 4, x, w)
        kept = taken.using(around)(w[:3])
    for now in (recorded, other, recorded):
        await taken.replay(await device.put(now))
        expected = (
            now * 2 + 10,
            (now * 3 + 10)[::-1],
            np.exp2(-now).sum(),
            np.where(now > 4, now, 10),
            10 - now[::2],
        )
        for ref, array in zip((total, turned, summed, where, kept), expected, strict=True):
            np.testing.assert_allclose(await device.get(ref), array)


@on_shared
async def test_an_expression_of_a_recording_knows_that_it_is_written_over(device: Device) -> None:
    x = await device.put(np.arange(1000.0))
    async with device.record(x) as taken:
        taken.evaluate(x[::-1] + 1, out=x)
    y = await device.put(np.arange(1000.0) ** 2)
    await taken.replay(y)
    assert (await device.get(y)).tolist() == (np.arange(1000.0)[::-1] ** 2 + 1).tolist()
    assert (await device.get(x)).tolist() == list(range(1000))


async def test_after_a_rebuild_expressions_read_what_is_given_then() -> None:
    async with opened(isolation="process") as device:
        x = await device.put(np.arange(4.0))
        sealed = await device.put(np.full(4, 10.0), sealed=True)
        async with device.record(x) as taken:
            y = taken.evaluate(x[::-1] + sealed)
        await taken.replay()
        await poison(device)
        with pytest.raises(GpuRefStale):
            await taken.replay()
        await taken.replay(await device.put(np.ones(4)))
        assert (await device.get(y)).tolist() == [11] * 4


# --- rebuilds ------------------------------------------------------------------------------


@pytest.mark.slow
async def test_after_a_rebuild_a_recording_makes_itself_anew() -> None:
    async with opened(isolation="process", max_restarts=10) as device:
        kernel = await adder(device)
        plain = await device.put(np.eye(2, dtype=np.float32))
        sealed = await device.put(2 * np.eye(2, dtype=np.float32), sealed=True)
        async with device.record(plain) as recorded:
            y = recorded.blas.gemm(plain, sealed)
            recorded.launch(kernel, 1, 4, y, 1.0)
        await recorded.replay()
        assert (await device.get(y)).tolist() == [[3, 1], [1, 3]]
        await poison(device)
        assert y.is_stale
        with pytest.raises(GpuRefStale):
            await recorded.replay()
        with pytest.raises(Unsupported):
            await recorded.dot()
        again = await device.put(3 * np.eye(2, dtype=np.float32))
        await recorded.replay(again)
        assert (await device.get(y)).tolist() == [[7, 1], [1, 7]]
        assert [ref.is_stale for ref in (y,)] == [False]
        await device.seal(again)
        await poison(device)
        await recorded.replay(again)
        assert (await device.get(y)).tolist() == [[7, 1], [1, 7]]
        await settled(device)
        del y, recorded, plain, sealed, again
        assert used_by(device) == 0


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_recording_opens_the_lanes_it_needs(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        x = await device.put(np.eye(2, dtype=np.float32))
        empty = await device.zeros((2, 0), np.float32)
        async with device.record(x) as recorded:
            y = recorded.blas.gemm(x, x)
            nothing = recorded.empty((0, 3))
            zeros = recorded.blas.gemm(empty, empty, trans_b=True)
        await recorded.replay()
        assert np.array_equal(await device.get(y), np.eye(2))
        assert (await device.get(nothing)).shape == (0, 3)
        assert (await device.get(zeros)).tolist() == [[0, 0], [0, 0]]
        assert "blas" not in {lane.name for lane in device.statistics().lanes}


@on_shared
async def test_a_call_finds_in_a_recording_how_a_view_is_aligned(device: Device) -> None:
    host = np.arange(-100, 100).astype(np.int8)
    buffer, eye = await device.put(host), await device.put(np.eye(8, dtype=np.int8))
    for first in range(6):
        view = buffer[first : first + 64].reshape(8, 8)
        async with device.record(view) as recorded:
            if first % 4:
                with pytest.raises(ValueError, match="begin at a multiple of 4 bytes"):
                    recorded.blas.gemm(view, eye)
            else:
                out = recorded.blas.gemm(view, eye)
        if not first % 4:
            await recorded.replay()
            expected = host[first : first + 64].reshape(8, 8)
            assert (await device.get(out) == expected).all()


@on_shared
async def test_replacement_needs_the_same_alignment(device: Device) -> None:
    host = np.arange(80, dtype=np.float32)
    buffer, other = await device.put(host), await device.put(host)
    whole, part, odd = buffer[:16], other[4:20], other[1:17]
    async with device.record(whole) as recorded:
        out = recorded.fft.rfft(whole)
    await recorded.replay(part)
    np.testing.assert_allclose(await device.get(out), np.fft.rfft(host[4:20]), rtol=1e-5)
    with pytest.raises(
        ValueError, match=r"<GpuRef float32\[16\] on .*:0, generation 1> must begin at a multiple"
    ):
        await recorded.replay(odd)
    async with device.record(whole) as outer:
        outer.call(recorded, whole)
    with pytest.raises(
        ValueError, match=r"<GpuRef float32\[16\] on .*:0, generation 1> must begin at a"
    ):
        await outer.replay(odd)
    async with device.record(odd) as lenient:
        out = lenient.fft.rfft(odd)
    for ref, start in ((odd, 1), (buffer[3:19], 3), (part, 4), (whole, 0)):
        await lenient.replay(ref)
        expected = np.fft.rfft(host[start : start + 16])
        np.testing.assert_allclose(await device.get(out), expected, rtol=1e-4, atol=1e-5)


async def test_replacements_share_no_memory_that_recorded_buffers_do_not(device: Device) -> None:
    a, out = [await device.put(np.arange(4, dtype=np.float64).reshape(2, 2)) for _ in range(2)]
    large = await device.zeros(8, np.float64)
    low, middle, high = [large[at : at + 4].reshape((2, 2)) for at in (0, 2, 4)]
    async with device.record(a, out) as recorded:
        recorded.blas.gemm(a, a, out=out)
    for refs in ((low, middle), (low, low), (out, out), (a, a), (out,)):
        with pytest.raises(ValueError, match="must have memory of its own"):
            await recorded.replay(*refs)
    with pytest.raises(ValueError, match="must have memory of its own"):
        await recorded.replay(replace={out: a})
    await recorded.replay(out, a)  # they change places
    await recorded.replay(low, high)
    async with device.record(a, out) as reading:
        reading.copy(a)
        reading.copy(out)
    await reading.replay(low, middle)  # it writes neither


@settings(max_examples=15)
@given(
    first=st.lists(st.integers(0, 12), min_size=2, max_size=4),
    replaced=st.integers(0, 12),
    order=st.randoms(use_true_random=False),
)
@on_shared
async def test_views_of_views_anywhere_in_a_recording(
    device: Device, first: list[int], replaced: int, order: Any
) -> None:
    """Parts of an input that begins anywhere, taken before and after their bases."""
    host = np.arange(64, dtype=np.float32)
    buffer, other = await device.put(host), await device.put(host + 100)
    kernel = await adder(device)
    base = buffer[first[0] : first[0] + 32]
    views = [(0, base)]
    for start in first[1:]:
        before, ref = views[-1]
        views.append((before + 1 + start // 3, ref[1 + start // 3 :]))
    taken = order.sample(views, len(views))
    async with device.record() as recorded:
        for start, ref in taken:
            recorded.launch(kernel, 1, ref.size, ref, float(start + 1))
    target = other[replaced : replaced + 32]
    expected, changed = host.copy(), host + 100
    for start, _ in taken:
        expected[first[0] + start : first[0] + 32] += start + 1
        changed[replaced + start : replaced + 32] += start + 1
    await recorded.replay()
    assert (await device.get(buffer) == expected).all()
    await recorded.replay(replace={base: target})
    assert (await device.get(other) == changed).all()
    assert (await device.get(buffer) == expected).all()


@on_shared
async def test_a_recording_takes_calls_and_is_entered_once(device: Device) -> None:
    a = await device.put(np.eye(2, dtype=np.float32))
    recording = device.record(a)
    async with recording:
        with pytest.raises(Unsupported, match="takes calls, not requests"):
            recording.perform(device.requests.blas.gemm(a, a))
        recording.blas.gemm(a, a)
    with pytest.raises(RuntimeError, match="entered once"):
        async with recording:
            pass


@on_shared
async def test_a_recording_whose_block_raised_is_not_replayed(device: Device) -> None:
    a = await device.put(np.eye(2, dtype=np.float32))
    with pytest.raises(KeyError):
        async with device.record(a) as recording:
            recording.blas.gemm(a, a)
            raise KeyError
    with pytest.raises(RuntimeError, match="record another"):
        await recording.replay()


@on_shared
async def test_a_recording_says_why_it_has_no_get(device: Device) -> None:
    async with device.record() as recording:
        with pytest.raises(AttributeError, match=r"no get, .* fetch its results after replay"):
            recording.get  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError, match="no attribute 'elephant'"):
            recording.elephant  # type: ignore[attr-defined]  # noqa: B018


@settings(max_examples=20)
@given(
    tasks=st.integers(1, 4),
    order=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    nested=st.booleans(),
    for_all=st.booleans(),
)
@on_shared
async def test_a_recording_with_results_is_replayed_by_one_task_unless_it_is_shared(
    device: Device, tasks: int, order: list[int], nested: bool, for_all: bool
) -> None:
    """A task reads the results it asked for, however late, or its replay is refused."""
    x = await device.put(np.ones(3))
    async with device.record(x, shared=for_all) as inner:
        y = inner.evaluate(x * 10)
    recorded = inner
    if nested:
        async with device.record(x) as recorded:
            recorded.call(inner, x)
    turns = [trio.open_memory_channel[float](len(order)) for _ in range(tasks)]
    owner = order[0] % tasks
    finished, done = trio.open_memory_channel[None](len(order))

    async def serve(task: int) -> None:
        async for value in turns[task][1]:
            # The outer one, without results, is of no task; the inner one is.
            if task == owner or for_all:
                await recorded.replay(await device.put(np.full(3, value)))
                last[task] = value
            else:
                with pytest.raises(RuntimeError, match=r"shared=True.*hold a trio.Lock"):
                    await recorded.replay(await device.put(np.full(3, value)))
            if task == owner and not for_all:
                assert (await device.get(y))[0] == 10 * last[task]
            await finished.send(None)

    last: dict[int, float] = {}
    async with trio.open_nursery() as nursery:
        for task in range(tasks):
            nursery.start_soon(serve, task)
        for at, task in enumerate(order):
            turns[task % tasks][0].send_nowait(float(at))
            await done.receive()
            if not for_all:  # nobody has overwritten what the owner has not read
                assert (await device.get(y))[0] == 10 * last[owner]
        for send, _ in turns:
            send.close()


@on_shared
async def test_a_recording_without_results_is_replayed_by_all_tasks(device: Device) -> None:
    refs = [await device.full(4, float(n)) for n in range(4)]
    async with device.record(refs[0]) as recorded:
        recorded.evaluate(refs[0] + 0.5, out=refs[0])
    async with trio.open_nursery() as nursery:
        for ref in refs:
            nursery.start_soon(recorded.replay, ref)
    assert [(await device.get(ref))[0] for ref in refs] == [n + 0.5 for n in range(4)]


@on_shared
async def test_a_recording_refuses_shared_that_is_no_bool(device: Device) -> None:
    with pytest.raises(TypeError, match="shared must be True or False, not int"):
        device.record(shared=1)  # type: ignore[arg-type]
