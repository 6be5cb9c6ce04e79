"""Sealed buffers that nodes fetch from each other, and placement on devices of many nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, OutOfMemory, open_device
from atomr_accel.cluster import Cluster, ClusterSettings, MemoryStore, open_cluster
from atomr_accel.cluster._sealed import CHUNK, SealedListing
from tests import seeds
from tests.harness import BACKEND, used_by

from ..harness import refused
from .simulated import Network

SETTINGS = ClusterSettings(shards=2, lease=60.0, heartbeat=0.02, silence=5.0)


class World:
    """Nodes of one program, that share one device; each may be said to lie."""

    def __init__(self, nursery: trio.Nursery, device: Device) -> None:
        self.nursery = nursery
        self.network = Network(nursery)
        self.store = MemoryStore()
        self.device = device

    @asynccontextmanager
    async def nodes(self, *names: str, devices: int = 1) -> AsyncIterator[list[Cluster]]:
        """Open nodes; they leave together."""
        opened: list[Cluster] = []
        over = trio.Event()

        async def live(name: str, *, task_status: trio.TaskStatus[None]) -> None:
            async with open_cluster(
                "test",
                node=name,
                store=self.store,
                transport=self.network.transport(name),
                settings=SETTINGS,
                devices=[self.device] * devices,
            ) as cluster:
                opened.append(cluster)
                await cluster.wait_for(len(opened))
                task_status.started()
                await over.wait()

        async with trio.open_nursery() as nursery:
            for name in names:
                await nursery.start(live, name)
            for each in opened:
                await each.wait_for(len(names))
            yield opened
            over.set()


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery, open_device(0, backend=BACKEND) as device:
        yield World(nursery, device)
        nursery.cancel_scope.cancel()


async def test_buffers_come_from_any_node_that_has_them() -> None:
    async with world() as here, here.nodes("a", "b", "c") as (a, b, c):
        device = here.device
        x = np.arange(5 * CHUNK // 8 + 3, dtype=np.float64)
        ref = await device.put(x, sealed=True)
        digest = await a.offer(device, ref)
        assert await a.offer(device, ref) == digest
        assert await a.fetch(digest, device) is ref
        got = await b.fetch(digest, device)
        assert got is not ref
        assert got.sealed
        np.testing.assert_array_equal(await device.get(got), x)
        a.withdraw(digest)
        with pytest.raises(LookupError, match="offers no buffer"):
            a.withdraw(digest)
        again = await c.fetch(digest, device)  # from b
        np.testing.assert_array_equal(await device.get(again), x)
        assert [each.statistics().sealed for each in (a, b, c)] == [0, 1, 1]
        b.withdraw(digest)
        await device.free(again)
        with pytest.raises(LookupError, match="none has it"):
            await a.fetch(digest, device)


ARRAYS: list[Any] = [
    np.float32(3.5),
    np.zeros((0, 3), np.int16),
    np.arange(12, dtype=np.complex64).reshape(3, 4),
    np.array([True, False, True]),
    np.arange(CHUNK + 1, dtype=np.uint8),
    np.arange(CHUNK // 2, dtype=np.float16).reshape(2, -1),
]


async def test_buffers_keep_their_shape_and_dtype() -> None:
    async with world() as here, here.nodes("a", "b") as (a, b):
        digests = set()
        for array in ARRAYS:
            ref = await here.device.put(array, sealed=True)
            digest = await a.offer(here.device, ref)
            digests.add(digest)
            got = await here.device.get(await b.fetch(digest, here.device))
            assert (got.dtype, got.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(got, array)
        assert len(digests) == len(ARRAYS)


async def test_what_a_node_forges_is_fetched_from_another() -> None:
    async with world() as here, here.nodes("a", "b", "c") as (a, b, c):
        device, chance = here.device, seeds.draw()
        x = np.random.default_rng(chance).integers(0, 256, 4 * CHUNK, np.uint8)
        digest = await a.offer(device, await device.put(x, sealed=True))
        await b.fetch(digest, device)
        honest, asked = b._shelf.answer, 0

        async def forge(digest: str, body: bytes) -> bytes:
            nonlocal asked
            asked += 1
            answer = bytearray(await honest(digest, body))
            if len(answer) == CHUNK:
                answer[-1] ^= 1
            return bytes(answer)

        b._shelf.answer = forge  # type: ignore[method-assign]
        got = await c.fetch(digest, device)
        np.testing.assert_array_equal(await device.get(got), x)
        assert asked

        async def other(digest: str, body: bytes) -> bytes:
            del digest, body
            return msgspec.msgpack.encode(SealedListing("int8", (1,), CHUNK, [b""]))

        c.withdraw(digest)
        a.withdraw(digest)
        b._shelf.answer = other  # type: ignore[method-assign]
        with pytest.raises(LookupError, match="none has it"):
            await c.fetch(digest, device)


async def test_a_node_that_is_lost_is_replaced_by_another() -> None:
    async with world() as here, here.nodes("a", "b", "c") as (a, b, c):
        device = here.device
        x = np.random.default_rng(1).integers(0, 256, 8 * CHUNK, np.uint8)
        digest = await a.offer(device, await device.put(x, sealed=True))
        await b.fetch(digest, device)
        honest = a._shelf.answer

        async def hang(digest: str, body: bytes) -> bytes:
            if body != b"\xc0":
                c._peers["a"].hang_up()  # in the midst of a chunk
                await trio.sleep_forever()
            return await honest(digest, body)

        a._shelf.answer = hang  # type: ignore[method-assign]
        np.testing.assert_array_equal(await device.get(await c.fetch(digest, device)), x)


async def test_bad_arguments_of_sealed_buffers_are_refused() -> None:
    async with world() as here, here.nodes("a", "b") as (a, _b):
        device = here.device
        loose = await device.put(np.ones((3, 4)))
        with pytest.raises(ValueError, match="must be sealed"):
            await a.offer(device, loose)
        sealed = await device.put(np.ones((3, 4)), sealed=True)
        with pytest.raises(ValueError, match="must be contiguous"):
            await a.offer(device, sealed[:, :2])
        with pytest.raises(TypeError, match="ref must be"):
            await a.offer(device, 3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="hexadecimal"):
            await a.fetch("abc", device)
        with pytest.raises(TypeError, match="device must be"):
            await a.fetch("0" * 64, "cpu:0")  # type: ignore[arg-type]


async def test_devices_of_other_nodes_fetch_and_offer() -> None:
    async with world() as here, here.nodes("a", "b", "c") as (a, b, _c):
        used = used_by(here.device)
        async with a.open_device("b/0") as one, a.open_device("c/0") as other:
            x = np.arange(6.0)
            digest = await one.offer(await one.put(x, sealed=True))
            assert (await other.get(await other.fetch(digest))).tolist() == x.tolist()
            again = await other.fetch(digest)
            await other.free(again)  # this user's; the node still offers it
            assert (await one.get(await one.fetch(digest))).tolist() == x.tolist()
        assert b.statistics().sealed == 1
        assert used_by(here.device) > used
        for name in ("b/0", "c/0"):
            async with a.open_device(name) as device:
                await device.withdraw(digest)
                with pytest.raises(LookupError, match="offers no buffer"):
                    await device.withdraw(digest)


async def test_own_devices_are_used_as_those_of_others() -> None:
    async with world() as here, here.nodes("a") as (a,):
        used = used_by(here.device)
        async with a.open_device("a/0") as device:
            x = await device.put(np.eye(3))
            assert (await device.get(x)).tolist() == np.eye(3).tolist()
            assert used_by(here.device) > used
        assert used_by(here.device) == used


async def test_work_goes_to_the_device_with_the_least_of_it() -> None:
    async with world() as here, here.nodes("a", "b", "c", devices=2) as (a, _b, _c):
        async with (
            a.open_devices(["b/0", "b/1", "c/0"], limit=2) as devices,
            trio.open_nursery() as nursery,
        ):
            taken: list[str] = []
            go = trio.Event()

            async def work() -> None:
                async with devices.place() as device:
                    taken.append(device.name)
                    await go.wait()
                    x = await device.put(np.ones(3))
                    assert (await device.get(x)).tolist() == [1, 1, 1]

            while not all(each.ready for each in devices.statistics()) or (
                len(devices.statistics()) < 3
            ):
                await devices._changed.wait()
            for _ in range(8):
                nursery.start_soon(work)
            while len(taken) < 6 or devices.waiting < 2:
                await trio.lowlevel.checkpoint()
            assert sorted(taken) == ["b/0", "b/0", "b/1", "b/1", "c/0", "c/0"]
            go.set()
        assert len(taken) == 8


async def test_devices_of_nodes_that_leave_get_no_work_and_those_of_new_ones_do() -> None:
    async with world() as here, here.nodes("a", devices=0) as (a,), a.open_devices() as devices:
        placed: list[str] = []

        async def work() -> None:
            async with devices.place() as device:
                placed.append(device.name)
                await device.put(np.ones(3))

        async with here.nodes("b"):
            await work()
            assert [each.name for each in devices.statistics()] == ["b/0"]
        while devices.statistics():
            await devices._changed.wait()
        async with here.nodes("c"):
            await work()
        assert placed == ["b/0", "c/0"]


async def test_work_without_room_and_bad_arguments_are_refused() -> None:
    async with world() as here, here.nodes("a", "b") as (a, _b):
        async with a.open_devices() as devices:
            await refused(OutOfMemory, "all devices are idle", devices.place, nbytes=1 << 60)
            await refused(ValueError, "nbytes must be", devices.place, nbytes=-1)
        await refused(ValueError, "must be like", a.open_devices, ["b"])
        await refused(ValueError, "limit must be", a.open_devices, limit=0)


@given(st.text(max_size=8), st.lists(st.integers(0, 9), max_size=3), st.binary(max_size=40))
@settings(max_examples=30, deadline=None)
def test_digests_tell_listings_apart(dtype: str, shape: list[int], content: bytes) -> None:
    one = SealedListing(dtype, tuple(shape), CHUNK, [content])
    others = [
        SealedListing(dtype + "x", tuple(shape), CHUNK, [content]),
        SealedListing(dtype, (*shape, 1), CHUNK, [content]),
        SealedListing(dtype, tuple(shape), CHUNK + 1, [content]),
        SealedListing(dtype, tuple(shape), CHUNK, [content + b"\0"]),
    ]
    assert one.digest() == SealedListing(dtype, tuple(shape), CHUNK, [content]).digest()
    assert one.digest() not in {each.digest() for each in others}
