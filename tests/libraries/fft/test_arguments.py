"""Arguments of ``device.fft``: refusals, calls in place, kept plans, and cancelled calls."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import Device, GpuRefSealed, GpuRefStale, Unsupported, open_device
from atomr_accel.libraries.fft.wire._messages import ForgetPlan, Prepare, RunTransform
from atomr_accel.ops import TOGETHER, perform
from atomr_accel.testing import poison

from ... import seeds
from ...harness import Gate
from ..conformance import MARKS, on_cuda
from ..refusals import refuses

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore::atomr_accel.CpuFallbackWarning"),
]


def noise(*shape: int, dtype: str = "complex64") -> Any:
    values = seeds.rng().uniform(-1, 1, (*shape, 2)) @ [1, 1j]
    return (values if dtype.startswith("complex") else values.real).astype(dtype)


test_bad_input_is_refused = refuses(
    "fft",
    [
        ("fft(f4_4, n=0)", ValueError, r"Invalid number of FFT data points \(0\)"),
        ("fft(f4_4, n=-3)", ValueError, r"data points \(-3\)"),
        ("fft(f4_4, n=2.5)", TypeError, "float"),
        ("fft(f4_2x0)", ValueError, r"data points \(0\)"),
        ("irfft(c8_1)", ValueError, r"data points \(0\)"),
        ("hfft(c8_1)", ValueError, r"data points \(0\)"),
        ("fft(f4_4, axis=1)", np.exceptions.AxisError, "axis 1 is out of bounds"),
        ("fft(f4_4, axis=0.5)", TypeError, "float"),
        ("fft(f4)", np.exceptions.AxisError, "dimension 0"),
        ('fft(f4_4, norm="unitary")', ValueError, 'unitary.*"backward"'),
        ("rfft(c8_4)", TypeError, "must be real for .*, not complex64"),
        ("ihfft(cd_4)", TypeError, "a must be real for ihfft, not complex128"),
        ("rfftn(c8_4x4)", TypeError, "must be real for .*, not complex64"),
        ("fft2(f4_4)", np.exceptions.AxisError, "axis -2"),
        ("fftn(f4_4x4, s=(4,), axes=(0, 1))", ValueError, "different lengths"),
        ("fftn(f4_4x4, s=(1, 2, 3))", np.exceptions.AxisError, "axis -3"),
        ("fftn(f4_4x4, s=(4, 0))", ValueError, r"data points \(0\)"),
        ("fftn(f4_4x4, axes=())", ValueError, "at least one axis"),
        ("fftn(f4)", ValueError, "at least one axis"),
        ("irfftn(c8_4x1)", ValueError, r"data points \(0\)"),
        ("fft(f2_6x2, half=True)", Unsupported, "powers of two only, not 6"),
        ("fft(f2_8x2, half=True, n=12)", Unsupported, "not 12"),
        ("fft(f2_8, half=True)", ValueError, r"pairs.*shape \(8,\)"),
        ("fft(c8_8, half=True)", TypeError, "float16 or bfloat16.*complex64"),
        ("fftshift(f4_3, axes=5)", np.exceptions.AxisError, "axis 5"),
        ("fft(f4_4, n=True)", TypeError, "n must be a whole number.*not True"),
        ("fft(f4_4, n=2**70)", ValueError, "n must be a whole number of at most"),
        ("rfft(f4_4, n=2**66)", ValueError, "n must be a whole number of at most"),
        ("fft(f4_4, axis=2**70)", np.exceptions.AxisError, "out of bounds"),
        ("fftn(f4_4x4, s=(4, 2**70))", ValueError, "s must be a whole number of at"),
        ("fftn(f4_4x4, s=4)", TypeError, "s must be a sequence of whole numbers"),
        ("fftn(f4_4x4, axes=0)", TypeError, "axes must be a sequence of whole numbers"),
        ("fftshift(f4_3, axes=2**70)", np.exceptions.AxisError, "out of bounds"),
        ("fftshift(f4_3, axes=0.5)", TypeError, "axes must be a whole number"),
    ],
)


async def test_frequencies_of_nothing(device: Device) -> None:
    with pytest.raises(ValueError, match="n must be at least 1, not 0"):
        await device.fft.fftfreq(0)
    with pytest.raises(TypeError, match="n must be a whole number"):
        await device.fft.rfftfreq(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="d must not be zero"):
        await device.fft.fftfreq(4, 0)


async def test_other_dtypes(device: Device) -> None:
    a = await device.zeros((4,), "float8_e5m2")
    with pytest.raises(TypeError, match="dtypes of fft must be one of float16, bfloat16, float32,"):
        await device.fft.fft(a)
    b = await device.put(np.array([True, False, True]))
    expected = np.fft.fft([1.0, 0.0, 1.0])
    np.testing.assert_allclose(await device.get(await device.fft.fft(b)), expected, atol=1e-15)


@pytest.mark.parametrize("name", ["irfft", "hfft"])
async def test_no_points_come_to_zeros(device: Device, name: str) -> None:
    """NumPy itself gives what its memory held before."""
    full = await device.put(np.full((3, 8), np.nan))  # freed memory has content
    await device.free(full)
    a = await device.put(np.zeros((3, 0), np.complex128))
    made = await getattr(device.fft, name)(a, n=6)
    np.testing.assert_array_equal(await device.get(made), np.zeros((3, 6)))
    made = await device.fft.irfftn(a, s=(4, 6))
    np.testing.assert_array_equal(await device.get(made), np.zeros((4, 6)))


async def test_out_is_checked(device: Device) -> None:
    a = await device.put(noise(4, 6))
    with pytest.raises(ValueError, match=r"out must have shape \(4, 6\), not \(4, 5\)"):
        await device.fft.fft(a, out=await device.empty((4, 5), "complex64"))
    with pytest.raises(TypeError, match="out must have dtype complex64, not complex128"):
        await device.fft.fft(a, out=await device.empty((4, 6), "complex128"))
    with pytest.raises(TypeError, match="out must be a GpuRef"):
        await device.fft.fft(a, out=np.empty((4, 6), "complex64"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"await device.put\(a\)"):
        await device.fft.fft(np.ones(4))  # type: ignore[arg-type]
    sealed = await device.put(noise(4, 6), sealed=True)
    with pytest.raises(GpuRefSealed):
        await device.fft.fft(a, out=sealed)
    real = await device.put(noise(4, 6, dtype="float32"))
    with pytest.raises(
        ValueError, match=r"out must share no memory with a, because irfft turns float32\[4,"
    ):
        await device.fft.irfft(real, 6, out=real)
    out = await device.empty((4, 6), "complex64")
    assert await device.fft.fft(a, out=out) is out
    await device.free(a)
    with pytest.raises(GpuRefStale, match="a was freed"):
        await device.fft.fft(a)


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1, 2), (3, 1), (0, 1, 2, 3)])
@pytest.mark.parametrize("name", ["fftn", "ifftn"])
async def test_in_place(device: Device, name: str, axes: tuple[int, ...]) -> None:
    host = noise(18, 4, 18, 5, dtype="complex128")
    a = await device.put(host)
    assert await getattr(device.fft, name)(a, axes=axes, out=a) is a
    expected = getattr(np.fft, name)(host, axes=axes)
    np.testing.assert_allclose(await device.get(a), expected, atol=1e-10)


async def test_a_sealed_input(device: Device) -> None:
    host = noise(8, 9)
    a = await device.put(host, sealed=True)
    for name in ("fft", "irfft"):  # the second one overwrites its input, hence a copy of it
        got = await device.get(await getattr(device.fft, name)(a))
        np.testing.assert_allclose(got, getattr(np.fft, name)(host), atol=1e-4)
    np.testing.assert_array_equal(await device.get(a), host)


async def test_the_plan_cache(device: Device) -> None:
    a = await device.put(noise(4, 16))
    for _ in range(3):
        await device.fft.fft(a)
        await device.fft.fft(a, axis=1)  # the same plan
    await device.fft.ifft(a)
    found = device.statistics().caches["fft.plans"]
    assert (found.entries, found.hits, found.misses, found.evictions) == (2, 5, 2, 0)
    device.fft.plan_limit = 1
    assert device.statistics().caches["fft.plans"].entries == 1
    await device.fft.fft(a)
    await device.fft.ifft(a)
    found = device.statistics().caches["fft.plans"]
    assert (found.entries, found.limit, found.misses, found.evictions) == (1, 1, 4, 3)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        device.fft.plan_limit = 0
    device.fft.clear()
    assert device.statistics().caches["fft.plans"].entries == 0
    assert device.fft.statistics().workspace == 0
    expected = np.fft.fft(await device.get(a))
    np.testing.assert_allclose(await device.get(await device.fft.fft(a)), expected, atol=1e-4)


async def test_many_at_once_share_the_work_area(device: Device) -> None:
    hosts = [noise(3, size) for size in (16, 100, 1009, 4096) for _ in range(4)]
    refs = [await device.put(host) for host in hosts]
    results: dict[int, Any] = {}

    async def one(number: int) -> None:
        results[number] = await device.fft.irfft(refs[number], norm="ortho")

    device.fft.plan_limit = 2
    async with trio.open_nursery() as nursery:
        for number in range(len(refs)):
            nursery.start_soon(one, number)
    for number, host in enumerate(hosts):
        expected = np.fft.irfft(host, norm="ortho")
        np.testing.assert_allclose(await device.get(results[number]), expected, atol=1e-4)
    assert device.statistics().caches["fft.plans"].entries == 2


async def test_no_plan_is_left_in_the_host_that_the_program_has_dropped(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan may be dropped while a transform that has found it waits to be sent."""
    sent: list[Any] = []
    submit = device.core.submit

    def spy(port: Any, name: str, message: Any, *blocks: Any) -> Any:
        sent.append(message)
        return submit(port, name, message, *blocks)

    monkeypatch.setattr(device.core, "submit", spy)
    refs = [await device.put(noise(2, size)) for size in range(2, 12) for _ in range(3)]
    device.fft.plan_limit = 2
    async with trio.open_nursery() as nursery:
        for ref in refs:
            nursery.start_soon(device.fft.fft, ref)
        with trio.CancelScope() as scope:
            scope.cancel()
            await device.fft.fft(refs[0])
    for _ in range(2):
        await device.fft.czt(refs[0], 5)  # three plans, of which none makes room for another
        assert len(device.fft._plans.table) == 3
    await device.fft.fft(refs[0])
    there: set[int] = set()
    for message in sent:
        if isinstance(message, ForgetPlan):
            there.discard(message.number)
        elif isinstance(message, Prepare | RunTransform):
            there.add(message.number)
    assert there == {plan.number for plan in device.fft._plans.table.values()}
    assert len(there) == 2


async def test_the_plan_that_a_batch_uses_is_in_use(device: Device) -> None:
    hot, others = await device.put(noise(4, 16)), [await device.put(noise(n)) for n in (8, 9, 10)]
    device.fft.plan_limit = 2
    await device.fft.fft(hot)
    kept = device.fft._plans.table
    (spec,), (plan,) = kept, kept.values()
    for other in others:
        await device.fft.fft(other)
        async with device.batch() as batch:
            batch.fft.fft(hot)
        assert kept.peek(spec) is plan


@pytest.mark.parametrize(("small", "areas"), [(1 << 24, 4), (0, 1)])
async def test_small_transforms_in_flight_have_work_areas_of_their_own(
    device: Device, gate: Gate, monkeypatch: pytest.MonkeyPatch, small: int, areas: int
) -> None:
    hold, held = await gate.kernel(device), await device.put(host := noise(100, dtype="float32"))
    device.fft.clear()
    monkeypatch.setattr(device.fft._plans.workspaces, "_small", small)
    results = [await device.fft.rfft(held, n=200)]  # padded in scratch memory
    area = device.fft.statistics().workspace
    assert area >= 200 * 4

    async def one() -> None:
        results.append(await device.fft.rfft(held, n=200))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, held)  # adds 1 to the first element
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(4 * TOGETHER):
            nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        assert device.fft.statistics().workspace == areas * area
        gate.open()
    host[0] += 1
    for result in results[1:]:
        expected = np.fft.rfft(host, n=200)
        np.testing.assert_allclose(await device.get(result), expected, atol=1e-4)


@pytest.fixture
async def fresh(accel_backend: str) -> AsyncIterator[Device]:
    async with open_device(0, backend=accel_backend, isolation="process") as device:
        yield device


async def test_a_rebuild(fresh: Device) -> None:
    host = noise(4, 20)
    sealed = await fresh.put(host, sealed=True)
    before = await fresh.fft.irfft(sealed)
    await poison(fresh)
    with pytest.raises(GpuRefStale):
        await fresh.fft.rfft(before)
    after = await fresh.get(await fresh.fft.irfft(sealed))
    np.testing.assert_allclose(after, np.fft.irfft(host), atol=1e-5)
    # The new host had to make its own plan.
    assert fresh.statistics().caches["fft.plans"].misses == 2


@pytest.mark.skipif(not on_cuda(), reason="cuFFT's work area")
async def test_the_work_area_is_the_devices_own(device: Device) -> None:
    a = await device.put(noise(1 << 20))
    await device.fft.fft(a)
    assert device.fft.statistics().workspace >= a.nbytes
    device.fft.clear()
    assert device.fft.statistics().workspace == 0


async def test_in_a_batch(device: Device) -> None:
    host = noise(4, 12)
    a = await device.put(host)
    async with device.batch() as batch:  # the lane and the plans are new to it
        spectrum = batch.fft.fft(a)
        back = batch.fft.ifft(spectrum)
        real = batch.fft.irfft(batch.fft.fftshift(back, axes=1))
    np.testing.assert_allclose(await device.get(back), host, atol=1e-5)
    expected = np.fft.irfft(np.fft.fftshift(host, axes=1))
    np.testing.assert_allclose(await device.get(real), expected, atol=1e-5)
    again = await device.get(await device.fft.fft(a))
    np.testing.assert_allclose(again, await device.get(spectrum), atol=1e-5)


async def test_recorded(device: Device) -> None:
    host = noise(18, 4, 18, dtype="float32")
    a = await device.put(host)
    async with device.record(a) as recording:
        spectrum = recording.fft.rfft(a, axis=1)
        back = recording.fft.irfft(spectrum, 4, axis=1, norm="forward")
    for _ in range(2):
        await recording.replay(a)
        np.testing.assert_allclose(await device.get(back), 4 * host, atol=1e-5)
        a = await device.put(host := noise(*host.shape, dtype="float32"))
    await recording.replay(a)
    expected = np.fft.rfft(host, axis=1)
    np.testing.assert_allclose(await device.get(spectrum), expected, atol=1e-4)


async def test_a_request_uses_work_areas_of_what_carries_it_out(device: Device) -> None:
    """A work area of a batch goes with it, so nothing else may write there."""
    host = noise(100, dtype="float32")
    a, expected = await device.put(host), np.fft.rfft(host, n=200)
    request = device.requests.fft.rfft(a, n=200)  # padded in scratch memory
    device.fft.clear()
    results = []
    for _ in range(2):
        async with device.batch() as batch:
            results.append(batch.perform(request))
        assert device.fft.statistics().workspace == 0
    results += [await perform(device.core, request) for _ in range(2)]
    assert device.fft.statistics().workspace >= 200 * 4
    async with device.record(a) as recording:
        results.append(recording.fft.rfft(a, n=200))
    await recording.replay()
    for result in results:
        np.testing.assert_allclose(await device.get(result), expected, atol=1e-4)


async def test_an_axis_that_repeats_in_a_batch_and_recorded(device: Device) -> None:
    host = noise(4, 6)
    a = await device.put(host)
    expected = np.fft.fftn(host, axes=(0, 1, 0))
    out = await device.put(np.zeros_like(host))
    async with device.batch() as batch:
        made = batch.fft.fftn(a, axes=(0, 1, 0), out=out)
        real = batch.fft.irfftn(a, (4, 6), (1, 1))
    assert made is out
    np.testing.assert_allclose(await device.get(out), expected, atol=1e-4)
    wanted = np.fft.irfftn(host, (4, 6), (1, 1))
    np.testing.assert_allclose(await device.get(real), wanted, atol=1e-4)
    async with device.record(a) as recording:
        again = recording.fft.fftn(a, axes=(0, 1, 0))
    await recording.replay()
    np.testing.assert_allclose(await device.get(again), expected, atol=1e-4)


async def test_invalid_transform_is_refused_before_anything_is_sent(device: Device) -> None:
    a = await device.put(noise(4, 6))
    before = device.statistics().caches["fft.plans"]
    wrong = await device.put(noise(4, 5))
    with pytest.raises(ValueError, match=r"out must have shape .*, not \(4, 5\)"):
        await device.fft.fftn(a, axes=(0, 1, 0), out=wrong)
    with pytest.raises(ValueError, match=r"out must have shape .*, not \(4, 5\)"):
        await device.fft.fft(a, out=wrong)
    assert device.statistics().caches["fft.plans"] == before


async def test_a_plan_that_was_asked_for_in_vain_has_the_same_number_again(
    fresh: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new number would leave the old plan in the host, with no message to drop it."""
    a = await fresh.put(noise(8))
    with trio.CancelScope() as scope:
        fault = fresh.core.submit

        def leaving(*args: Any) -> Any:
            if args[1] == "fft.plan":
                scope.cancel()
            return fault(*args)

        monkeypatch.setattr(fresh.core, "submit", leaving)
        await fresh.fft.fft(a)
    assert scope.cancelled_caught
    monkeypatch.undo()
    (plan,) = fresh.fft._plans.table.values()
    await fresh.fft.fft(a)
    (same,) = fresh.fft._plans.table.values()
    assert same is plan
    found = fresh.statistics().caches["fft.plans"]
    assert (found.hits, found.misses) == (0, 1)


async def test_the_work_area_of_a_batch_is_free_when_it_ends(device: Device) -> None:
    """The work area is freed at once, before garbage is collected."""
    a = await device.put(noise(4, 200))
    async with device.batch() as batch:
        batch.fft.irfft(a)  # plans are there now
    gc.disable()
    try:
        before = device.statistics().memory.used
        for _ in range(2):
            async with device.batch() as batch:
                batch.fft.irfft(a)
            assert device.statistics().memory.used == before
    finally:
        gc.enable()
