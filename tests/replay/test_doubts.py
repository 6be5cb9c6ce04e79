"""A replay skips comparisons that depend on values it did not make again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import trio

from atomr_accel import Device, GpuRef
from atomr_accel.device.batches.record import Recording
from atomr_accel.replay import Report, content_hash, open_journal, replay_journal
from atomr_accel.replay._reading import reading

from ..harness import opened
from .programs import SOURCE, added, scaled, shifted, shifted_by

Step = Callable[[Device, GpuRef, GpuRef], Awaitable[GpuRef | None]]


class Thing:
    """An object that a journal cannot recreate."""


async def filled_in_part(device: Device, x: GpuRef, _z: GpuRef) -> GpuRef:
    await device.fill(x[:1], 9)
    return x


async def put_in_part(device: Device, x: GpuRef, _z: GpuRef) -> GpuRef:
    await device.put(np.ones(2, np.float32), out=x[::2, 1])
    return x


async def run_in_place(device: Device, x: GpuRef, z: GpuRef) -> None:
    await device.run(added, x, z)


async def launched(device: Device, x: GpuRef, z: GpuRef) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "scaled", cpu=scaled)
    await kernel.launch(1, 16, x, 0.5, z)


async def through_views(device: Device, x: GpuRef, z: GpuRef) -> None:
    await device.copy(await device.array.sort(x.T, axis=0), z.T)


async def requested(device: Device, x: GpuRef, _z: GpuRef) -> GpuRef:
    return await device.blas.ref.ask(device.requests.blas.gemm(x, x))


async def recorded(device: Device, x: GpuRef, z: GpuRef) -> None:
    async with device.record(z) as one:
        one.evaluate(z + x, out=z)
    await one.replay()


async def recorded_as_a_part(device: Device, x: GpuRef, z: GpuRef) -> GpuRef:
    async with device.record(x) as part:
        y = part.evaluate(x * 2)
    async with device.record(z) as whole:
        whole.call(part, x)
        whole.evaluate(z + 1, out=z)
    await whole.replay()
    return y


STEPS: list[Step] = [
    filled_in_part,
    put_in_part,
    run_in_place,
    launched,
    through_views,
    requested,
    recorded,
    recorded_as_a_part,
]


@pytest.mark.parametrize("results", [False, True])
@pytest.mark.parametrize("step", STEPS)
async def test_results_of_a_skipped_call_are_not_compared(
    step: Step, results: bool, tmp_path: Path
) -> None:
    async with opened(isolation="thread") as device:
        async with open_journal(device, tmp_path / "journal", contents=True, results=results):
            x = await device.put(np.ones((4, 4), np.float32))
            z = await device.put(np.ones((4, 4), np.float32))
            await device.run(shifted_by, x, Thing())
            made = await step(device, x, z)
            await device.get(z if made is None else made)
            await device.fill(x, 1)  # all of it is known again
            await device.get(x)
        report = await replay_journal(tmp_path / "journal", device)
    assert report.differences == [], report
    assert len(report.skipped) == 1
    assert report.compared >= 1


@pytest.mark.parametrize("before", [False, True])
async def test_a_recording_of_what_a_failed_batch_wrote_is_replayed(
    before: bool, tmp_path: Path
) -> None:
    """The batch's own buffers are gone, and not those that it was given."""

    async def made(device: Device, x: GpuRef, z: GpuRef) -> Recording:
        async with device.record(z, x) as one:
            one.evaluate(z + x, out=z)
        return one

    async with opened(isolation="thread") as device:
        async with open_journal(device, tmp_path / "journal", contents=True, results=True):
            x, z = await device.put(np.ones(3)), await device.put(np.ones(3))
            one = await made(device, x, z) if before else None
            with pytest.raises(KeyError):
                async with device.batch() as batch:
                    batch.fill(x, 7.0)
                    raise KeyError
            one = one or await made(device, x, z)
            await one.replay()
            await device.get(z)
        report = await replay_journal(tmp_path / "journal", device)
    assert report.same, report


async def test_outputs_of_a_cancelled_replay_are_unknown(tmp_path: Path) -> None:
    async with opened(isolation="thread") as device:
        async with open_journal(device, tmp_path / "journal", contents=True):
            z = await device.put(np.ones(3))
            async with device.record() as one:
                one.evaluate(z + 1, out=z)
            await one.replay()
            with trio.CancelScope() as scope:
                scope.cancel()
                await one.replay()
            await device.get(z)
        report = await replay_journal(tmp_path / "journal", device)
    assert report.differences == [], report


async def test_a_body_of_a_recording_that_was_not_begun_is_not_carried_out(tmp_path: Path) -> None:
    held = np.ones(3)
    async with opened(isolation="thread") as device:
        async with open_journal(device, tmp_path / "journal"):
            x, lost = await device.put(held), await device.put(np.zeros(3))
            async with device.record(lost, x) as one:
                one.fill(x, 5)
            await device.get(x)
        inputs = {content_hash(held): held}
        report = await replay_journal(tmp_path / "journal", device, inputs=inputs)
    assert report.differences == [], report
    assert any("was skipped" in each.reason for each in report.skipped)


async def test_journal_of_a_recording_notes_its_results_only(tmp_path: Path) -> None:
    """Only the recording's own ops are noted: stand-ins are no buffers, so others do not wait."""
    async with opened(isolation="thread") as device:
        async with open_journal(device, tmp_path / "journal", contents=True, results=True):
            x = await device.put(np.ones(3))
            async with device.record() as one:
                y = one.evaluate(x * 2)
                one.evaluate(y + 1, out=x)
            await one.replay()
        async with reading(tmp_path / "journal") as read:
            whole = [at for each in read.calls for at in each.outputs if at.startswith("#")]
    assert len(whole) == 1


# --- requests --------------------------------------------------------------------------------


async def asked(device: Device, x: GpuRef) -> list[GpuRef]:
    made = await device.blas.ref.ask(device.requests.blas.gemm(x, x))
    await device.blas.ref.ask(device.requests.blas.scal(2.0, x.reshape(-1)))
    return [made, x]


async def in_a_batch(device: Device, x: GpuRef) -> list[GpuRef]:
    async with device.batch() as batch:
        y = batch.perform(device.requests.blas.gemm(x, x))
        z = batch.evaluate(y + 1)
    return [y, z]


async def at_the_end_of_a_batch(device: Device, x: GpuRef) -> list[GpuRef]:
    async with device.batch() as batch:
        batch.run(shifted, x)
        y = batch.perform(device.requests.blas.gemm(x, x))
        z = batch.evaluate(y + 1)
        batch.perform(device.requests.blas.scal(2.0, x.reshape(-1)))
    return [x, y, z]


@pytest.mark.parametrize("ask", [asked, in_a_batch, at_the_end_of_a_batch])
async def test_outputs_of_requests_are_noted_right_after_them(
    ask: Callable[[Device, GpuRef], Awaitable[list[GpuRef]]], tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    async with opened(isolation="thread") as device:
        async with open_journal(device, path, contents=True, results=True):
            x = await device.put(np.full((2, 2), 3, np.float32))
            for each in await ask(device, x):
                await device.get(each)
        report: Report = await replay_journal(path, device)
    assert report.same, report
    assert report.compared >= 4
