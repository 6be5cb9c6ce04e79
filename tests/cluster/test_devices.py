"""Devices of other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import GpuRefStale, Unsupported, open_device
from atomr_accel.cluster import ClusterSettings, MemoryStore, RemoteBuffer, open_cluster
from atomr_accel.patterns import Closed
from atomr_accel.testing import poison
from tests.harness import BACKEND, used_by

from ..harness import refused
from .simulated import Network


def node(name: str, store: MemoryStore, network: Network, **options: Any) -> Any:
    return open_cluster(
        "test",
        node=name,
        store=store,
        transport=network.transport(name),
        settings=ClusterSettings(shards=2, lease=60.0),
        **options,
    )


async def test_a_device_of_another_node_computes() -> None:
    async with trio.open_nursery() as nursery, open_device(0, backend=BACKEND) as device:
        store, network = MemoryStore(), Network(nursery)
        used = used_by(device)
        async with node("a", store, network) as a, node("b", store, network, devices=[device]):
            await a.wait_for(2)
            async with a.open_device("b/0") as remote:
                x = np.arange(6, dtype=np.float32).reshape(2, 3)
                one, other = await remote.put(x), await remote.put(x.T)
                assert (one.shape, one.dtype) == ((2, 3), np.float32)
                product = await remote.ask(remote.requests.blas.gemm(one, other))
                assert isinstance(product, RemoteBuffer)
                np.testing.assert_allclose(await remote.get(product), x @ x.T)
                same = await remote.ask(remote.requests.blas.gemm(one, other, out=product))
                assert same is product
                zeros = await remote.ask(remote.requests.zeros((2, 2), np.float64))
                assert (await remote.get(zeros)).dtype == np.float64
                assert remote.statistics() == {"buffers": 4, "bytes": 24 * 2 + 16 + 32}
                await remote.free(one)
                with pytest.raises(GpuRefStale, match="was freed"):
                    await remote.get(one)
                with pytest.raises(Unsupported, match="on its own node"):
                    await remote.ask(remote.requests.run("print"))
                with pytest.raises(Unsupported, match="on its own node"):
                    await remote.ask(remote.requests.nvrtc.compile("code", "name"))
                with pytest.raises(Unsupported, match="must be plain"):
                    await remote.ask(remote.requests.full(2, object()))
                with pytest.raises(ValueError, match="inner dimensions differ"):
                    await remote.ask(remote.requests.blas.gemm(other, other))
                with pytest.raises(TypeError, match="RemoteRequest"):
                    await remote.ask(3)
                async with a.open_device("b/0") as again:
                    with pytest.raises(ValueError, match="made by this device"):
                        await again.ask(remote.requests.get(other))
            assert used_by(device) <= used
            await refused(LookupError, "none of index 7", a.open_device, "b/7")
            await refused(ValueError, "must be like", a.open_device, "b:0")
        nursery.cancel_scope.cancel()


async def test_devices_are_used_within_their_block() -> None:
    async with trio.open_nursery() as nursery, open_device(0, backend=BACKEND) as device:
        store, network = MemoryStore(), Network(nursery)
        async with node("a", store, network) as a, node("b", store, network, devices=[device]):
            await a.wait_for(2)
            used = used_by(device)
            async with a.open_device("b/0") as remote:
                await remote.put(np.ones(5))
            async with a.open_devices() as devices, devices.place() as other:
                await other.put(np.ones(5))
            for each in (remote, other):
                with pytest.raises(Closed, match="b/0 is closed: its block was left"):
                    await each.put(np.ones(5))
            with pytest.raises(Closed, match="the devices are closed"):
                async with devices.place():
                    pass
            while used_by(device) > used:  # what is freed is used until its op's end was noted
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_arrays_keep_their_values_in_any_byte_order() -> None:
    async with trio.open_nursery() as nursery, open_device(0, backend=BACKEND) as device:
        store, network = MemoryStore(), Network(nursery)
        async with node("a", store, network) as a, node("b", store, network, devices=[device]):
            await a.wait_for(2)
            async with a.open_device("b/0") as remote:
                for dtype in (">f4", "<i8", ">c16", ">u2"):
                    array = np.arange(6).astype(dtype).reshape(2, 3)
                    assert (await remote.get(await remote.put(array.T)) == array.T).all()
        nursery.cancel_scope.cancel()


async def test_a_block_is_left_with_buffers_that_a_fault_took() -> None:
    async with trio.open_nursery() as nursery, open_device(0, backend=BACKEND) as device:
        store, network = MemoryStore(), Network(nursery)
        async with node("a", store, network) as a, node("b", store, network, devices=[device]):
            await a.wait_for(2)
            used = used_by(device)
            async with a.open_device("b/0") as remote:
                await remote.put(np.ones(5))
                await poison(device)
                await remote.put(np.ones(5))
            while used_by(device) > used:  # the error of the buffer that is gone held it
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_buffers_are_freed_with_their_connection() -> None:
    async with trio.open_nursery() as nursery, open_device(0, backend=BACKEND) as device:
        store, network = MemoryStore(), Network(nursery)
        used = used_by(device)
        async with node("a", store, network) as a, node("b", store, network, devices=[device]):
            await a.wait_for(2)
            async with a.open_device("b/0") as remote:
                buffer = await remote.put(np.ones(5))
                a._peers["b"].hang_up()
                while a._peers["b"].connected:
                    await trio.lowlevel.checkpoint()
                await remote.ask(remote.requests.statistics())  # over another connection
                with pytest.raises(GpuRefStale, match="has ended"):
                    await remote.get(buffer)
                while used_by(device) > used:
                    await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
